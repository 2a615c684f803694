// The steps of a run, the newest first, a page at a time.

import { get, patiently } from "./api.js";
import { h, put, row, table } from "./dom.js";
import { duration, number } from "./format.js";
import { behind } from "./words.js";

const PAGE = 20;
const COLUMNS = [
  { label: "Step" },
  { label: "Reward", number: true },
  { label: "Accuracy", number: true },
  { label: "Length", number: true },
  { label: "Tokens", number: true },
  { label: "Taught nothing", number: true },
  { label: "Rollout", number: true },
  { label: "Train", number: true },
  { label: "Refit", number: true },
  { label: "Weights" },
];

export function stepsTable(signal, run) {
  const content = h("div", {});
  const older = h(
    "button",
    { type: "button", on: { click: () => behind(signal, () => turn(-PAGE)) } },
    "Older",
  );
  const newer = h(
    "button",
    { type: "button", on: { click: () => behind(signal, () => turn(PAGE)) } },
    "Newer",
  );
  const element = h("div", {}, content, h("p", { class: "pager" }, newer, older));
  let last = null; // the newest step that is shown; null: whatever is the newest
  let view = null;
  let seen = "";

  async function turn(by) {
    const to = Math.max((last ?? view.step) + by, PAGE);
    last = to >= view.step ? null : to;
    seen = "";
    await load();
  }

  async function load() {
    const end = last ?? view.step;
    const key = `${end}/${view.incarnation}/${view.phase === "recovering"}`;
    if (key === seen) return;
    seen = key;
    const since = Math.max(0, end - PAGE);
    const told = await patiently(signal, () =>
      get(`/v1/runs/${encodeURIComponent(run)}/steps?since=${since}&limit=${PAGE}`, signal),
    );
    older.hidden = since === 0;
    newer.hidden = last === null;
    if (!told.steps.length) return put(content, h("p", { class: "faint" }, "No step yet."));
    put(
      content,
      table(
        "Steps, newest first",
        COLUMNS,
        told.steps.reverse().map((step) => rowOf(run, step)),
      ),
    );
  }

  return {
    element,
    update(newest) {
      view = newest;
      if (last === null) behind(signal, load);
    },
  };
}

function rowOf(run, step) {
  const again =
    step.retrained &&
    h(
      "span",
      { class: "lost", title: `${step.replayed_groups} of ${step.num_groups} groups came from the journal` },
      " again",
    );
  return row(COLUMNS, [
    [h("a", { href: `/runs/${encodeURIComponent(run)}/steps/${step.step}` }, String(step.step)), again],
    number(step.reward_mean),
    number(step.accuracy),
    number(step.length_mean),
    number(step.num_tokens),
    `${step.zero_advantage_groups} / ${step.num_groups}`,
    duration(step.rollout_s),
    duration(step.train_s),
    duration(step.refit_s),
    h("code", {}, step.version),
  ]);
}
