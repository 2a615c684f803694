// One prompt and its responses: what was read, what was written, token by token.

import { get, patiently } from "./api.js";
import { h } from "./dom.js";
import { number, plural } from "./format.js";
import { title } from "./main.js";
import { crumbs, loading, runLink, toPlace } from "./words.js";

const SHADES = 6;

export async function show(main, signal, run, which) {
  const base = `/runs/${encodeURIComponent(run)}`;
  title(`Prompt ${which} · ${run}`);
  main.replaceChildren(loading(`prompt ${which}`));
  const record = await patiently(signal, () => get(`/v1${base}/rollouts/${which}`, signal));
  const { key, trained_at: trained } = record;
  const rewards = record.samples.map((sample) => sample.reward).filter((reward) => reward !== null);
  const mean = rewards.length ? rewards.reduce((sum, one) => sum + one, 0) / rewards.length : null;
  const mixed = record.version_start !== record.version_end;
  const all = [
    [
      "Weights",
      h("code", {}, mixed ? `${record.version_start} → ${record.version_end}` : record.version_start),
      mixed ? "a refit came between" : "",
    ],
    [
      "Trained at",
      trained === null ? "not yet" : h("a", { href: `${base}/steps/${trained}` }, `step ${trained}`),
    ],
    ["Mean reward", number(mean), `of ${plural(record.samples.length, "sample")}`],
    ["Logprob error", number(record.logprob_error), "nats a token, of its step"],
    ["Incarnation", String(record.incarnation)],
  ];
  const step = trained === null ? [] : [h("a", { href: `${base}/steps/${trained}` }, `step ${trained}`)];
  main.replaceChildren(
    h(
      "header",
      { class: "head" },
      h(
        "div",
        {},
        crumbs(runLink(run), ...step, h("span", { "aria-current": "page" }, `prompt ${key}`)),
        h("h1", {}, `Prompt ${key}`),
        h("p", { class: "faint" }, "Problem ", h("code", {}, record.problem_id)),
      ),
      h(
        "nav",
        { class: "pager", "aria-label": "Prompts" },
        key > 0 &&
          h("a", { class: "button", rel: "prev", href: `${base}/records/${key - 1}` }, "Previous prompt"),
        h("a", { class: "button", rel: "next", href: `${base}/records/${key + 1}` }, "Next prompt"),
      ),
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
    h(
      "section",
      { "aria-labelledby": "prompt-title" },
      h("h2", { id: "prompt-title" }, "Prompt"),
      record.prompt === null
        ? h(
            "p",
            { class: "faint" },
            "Its environment is not installed where the API runs: here are its tokens.",
          )
        : h("pre", { class: "text" }, record.prompt),
      tokenList("Prompt tokens", record.prompt_tokens),
    ),
    h(
      "section",
      { "aria-labelledby": "responses-title" },
      h("h2", { id: "responses-title" }, "Responses"),
      h(
        "div",
        { class: "responses" },
        record.samples.map((sample, place) => response(sample, record.raw[place], place)),
      ),
    ),
  );
  toPlace();
}

function response(sample, raw, place) {
  const parts = Object.entries(sample.rewards);
  const components =
    parts.length > 1 || parts.some(([, value]) => value !== sample.reward)
      ? parts.map(([name, value]) => `${name} ${number(value)}`).join(", ")
      : null;
  return h(
    "article",
    {
      class: sample.correct ? "response right" : "response",
      id: `sample-${place}`,
      "aria-label": `Sample ${place}`,
    },
    h(
      "header",
      {},
      h("b", { class: "reward" }, number(sample.reward)),
      h(
        "span",
        { class: sample.correct ? "verdict good" : "verdict" },
        sample.correct ? "correct" : "not correct",
      ),
      components && h("span", {}, components),
      h(
        "span",
        { class: "faint" },
        `sample ${place} · ${plural(sample.num_tokens, "token")} · finished by ${sample.finish_reason} · logprob ${number(sample.logprob_mean)} · seed ${sample.seed}`,
      ),
    ),
    h("pre", { class: "text" }, sample.text),
    tokens(raw),
  );
}

/** Tokens, the unlikely ones marked. Only what is looked at is made: there may be thousands. */
function tokens(raw) {
  const unlikely = raw.logprobs.filter((value) => value !== null && value < -3).length;
  const content = h("div", {});
  const open = (event) => {
    if (!event.target.open || content.firstChild) return;
    const chips = raw.tokens.map((token, place) => {
      const logprob = raw.logprobs[place];
      const shade = logprob === null ? SHADES - 1 : Math.min(SHADES - 1, Math.floor(-logprob));
      const kind = raw.mask[place] ? `token s${Math.max(0, shade)}` : "token other";
      return h(
        "li",
        {
          class: kind,
          title: `token ${token}, logprob ${number(logprob)}${raw.mask[place] ? "" : ", not the policy's: not trained on"}`,
        },
        String(token),
      );
    });
    content.replaceChildren(
      h(
        "p",
        { class: "faint" },
        "Ids in order; the darker, the less likely it was. Not the policy's own are crossed out.",
      ),
      h("ol", { class: "tokens" }, chips),
    );
  };
  return h(
    "details",
    { class: "more", on: { toggle: open } },
    h("summary", {}, "Raw tokens", unlikely > 0 && h("span", { class: "faint" }, ` (${unlikely} unlikely)`)),
    content,
  );
}

function tokenList(name, ids) {
  return h(
    "details",
    { class: "more" },
    h("summary", {}, name),
    h(
      "ol",
      { class: "tokens" },
      ids.map((id) => h("li", { class: "token" }, String(id))),
    ),
  );
}
