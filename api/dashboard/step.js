// One step: what was asked, what was answered, and what that was worth.

import { get, patiently, Problem } from "./api.js";
import { h, put, table, row } from "./dom.js";
import { clock, duration, number, plural, seconds } from "./format.js";
import { histogram } from "./histogram.js";
import { title } from "./main.js";
import { crumbs, loading, runLink } from "./words.js";

const PAGE = 100;
const SHOWN = 200;
const COLUMNS = [
  { name: "key", label: "Prompt" },
  { name: "sample", label: "Sample", number: true },
  { name: "reward", label: "Reward", number: true },
  { name: "correct", label: "Correct" },
  { name: "num_tokens", label: "Tokens", number: true },
  { name: "finish_reason", label: "Finished" },
  { name: "logprob_mean", label: "Logprob", number: true },
  { name: "asked", label: "Asked" },
  { name: "text", label: "Answered" },
];

export async function show(main, signal, run, which) {
  const step = Number(which);
  const base = `/runs/${encodeURIComponent(run)}`;
  title(`Step ${step} · ${run}`);
  main.replaceChildren(loading(`step ${step}`));
  const [view, steps] = await patiently(signal, () =>
    Promise.all([
      get(`/v1${base}`, signal),
      get(`/v1${base}/steps?since=${Math.max(step - 1, 0)}&limit=1`, signal),
    ]),
  );
  const found = steps.steps.find((one) => one.step === step);
  const around = h(
    "nav",
    { class: "pager", "aria-label": "Steps" },
    step > 1 && h("a", { class: "button", rel: "prev", href: `${base}/steps/${step - 1}` }, "Previous step"),
    step < view.step &&
      h("a", { class: "button", rel: "next", href: `${base}/steps/${step + 1}` }, "Next step"),
  );
  const head = h(
    "header",
    { class: "head" },
    h(
      "div",
      {},
      crumbs(runLink(run), h("span", { "aria-current": "page" }, `step ${step}`)),
      h("h1", {}, `Step ${step}`),
    ),
    around,
  );
  if (!found) {
    const why =
      step > view.step
        ? `Run ${run} has done ${plural(view.step, "step")} of ${view.max_num_steps}, and this one has not come.`
        : "It is not on record.";
    main.replaceChildren(head, h("p", { class: "empty" }, why));
    return;
  }
  const rollouts = h("section", { "aria-label": "Samples" }, loading("samples"));
  main.replaceChildren(head, about(found, base), rollouts);
  await samples(rollouts, signal, run, step);
}

function about(step, base) {
  const all = [
    ["Reward", number(step.reward_mean)],
    ["Accuracy", number(step.accuracy)],
    ["Response length", number(step.length_mean), "tokens"],
    [
      "Generation",
      number(step.rollout_s > 0 && !step.replayed_groups ? step.num_tokens / step.rollout_s : null),
      "tokens/s",
    ],
    ["Logprob error", number(step.metrics.logprob_error), "nats a token"],
    ["Gradient norm", number(step.metrics.grad_norm)],
    ["From the journal", `${step.replayed_groups} / ${step.num_groups}`, "groups"],
    ["Taught nothing", `${step.zero_advantage_groups} / ${step.num_groups}`, "groups"],
    [
      "Took",
      duration(seconds(step.started_at, step.finished_at)),
      `rollout ${duration(step.rollout_s)}, train ${duration(step.train_s)}, refit ${duration(step.refit_s)}`,
    ],
  ];
  return [
    h(
      "p",
      { class: "faint" },
      "Made weights ",
      h(
        "a",
        { href: `${base}/lineage?incarnation=${step.incarnation}&step=${step.step}` },
        h("code", {}, step.version),
      ),
      ` at ${clock(step.finished_at)}`,
      step.retrained && h("span", { class: "lost" }, " after a recovery: it had been trained before"),
    ),
    h(
      "dl",
      { class: "facts" },
      all.map(([name, value, note]) =>
        h(
          "div",
          {},
          h("dt", {}, name),
          h("dd", {}, h("b", {}, value), note && h("span", { class: "faint" }, ` ${note}`)),
        ),
      ),
    ),
  ]
    .flat()
    .reduce(
      (section, part) => (section.append(part), section),
      h("section", { "aria-label": "About this step" }),
    );
}

async function samples(home, signal, run, step) {
  const base = `/runs/${encodeURIComponent(run)}`;
  const rows = [];
  const dropped = [];
  let cursor = null;
  do {
    const more = cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
    let page;
    try {
      page = await patiently(signal, () =>
        get(`/v1${base}/rollouts?step=${step}&limit=${PAGE}${more}`, signal),
      );
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return put(home, h("p", { class: "empty" }, error.detail));
    }
    for (const group of page.rollouts) {
      group.samples.forEach((sample, place) =>
        rows.push({
          ...sample,
          key: group.key,
          sample: place,
          asked: lastLine(group.prompt) ?? group.problem_id,
        }),
      );
    }
    dropped.push(...page.dropped);
    cursor = page.next_cursor;
    if (cursor) put(home, loading(`samples (${rows.length} so far)`));
  } while (cursor);
  if (!rows.length) {
    return put(
      home,
      h(
        "p",
        { class: "empty" },
        "The journal holds nothing of this step any more: retention has deleted it, or it lies on another host.",
      ),
      given(dropped),
    );
  }
  const list = h("div", {});
  const sorted = { by: "key", down: false, shown: SHOWN };
  const draw = () => list.replaceChildren(sampleTable(rows, sorted, base, draw));
  home.replaceChildren(
    h(
      "div",
      { class: "halves" },
      h(
        "div",
        {},
        h("h2", {}, "Rewards"),
        histogram(
          rows.map((one) => one.reward),
          "reward",
        ),
      ),
      h(
        "div",
        {},
        h("h2", {}, "Lengths"),
        histogram(
          rows.map((one) => one.num_tokens),
          "tokens",
        ),
      ),
    ),
    h("h2", {}, plural(rows.length, "sample")),
    list,
    ...[given(dropped)].filter(Boolean),
  );
  draw();
}

function sampleTable(rows, sorted, base, draw) {
  const order = (a, b) =>
    compare(a[sorted.by], b[sorted.by]) * (sorted.down ? -1 : 1) || a.key - b.key || a.sample - b.sample;
  const shown = [...rows].sort(order).slice(0, sorted.shown);
  const made = table(
    "Samples of this step; the column heads sort",
    COLUMNS,
    shown.map((one) =>
      row(COLUMNS, [
        h("a", { href: `${base}/records/${one.key}#sample-${one.sample}` }, String(one.key)),
        String(one.sample),
        number(one.reward),
        one.correct ? "yes" : h("span", { class: "faint" }, "no"),
        number(one.num_tokens),
        one.finish_reason,
        number(one.logprob_mean),
        h("span", { class: "clip" }, one.asked),
        h("span", { class: "clip" }, one.text),
      ]),
    ),
    { class: "samples" },
  );
  made.querySelectorAll("thead th").forEach((head, place) => {
    const { name, label } = COLUMNS[place];
    const by = sorted.by === name;
    head.setAttribute("aria-sort", by ? (sorted.down ? "descending" : "ascending") : "none");
    const sort = () => {
      sorted.down = by ? !sorted.down : false;
      sorted.by = name;
      draw();
      document.querySelectorAll(".samples thead button")[place]?.focus();
    };
    head.replaceChildren(h("button", { type: "button", class: "sort", on: { click: sort } }, label));
  });
  if (rows.length <= sorted.shown) return made;
  const more = () => ((sorted.shown += SHOWN), draw());
  return h(
    "div",
    {},
    made,
    h(
      "p",
      { class: "pager" },
      h(
        "button",
        { type: "button", on: { click: more } },
        `Show ${Math.min(SHOWN, rows.length - sorted.shown)} more of ${rows.length}`,
      ),
    ),
  );
}

/** What a prompt asks for in the end: what comes before is often the same for all. */
function lastLine(prompt) {
  return prompt?.trimEnd().split("\n").at(-1);
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function given(dropped) {
  if (!dropped.length) return null;
  const items = dropped.map((one) => h("li", {}, `Prompt ${one.key}: ${one.cause}`));
  return h(
    "section",
    { "aria-label": "Given up" },
    h("h2", {}, "Given up"),
    h("p", { class: "faint" }, "Nobody trains on these prompts, and they count as no reward."),
    h("ul", {}, items),
  );
}
