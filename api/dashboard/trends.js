// What is charted of a run, step by step; anything else that its trainer measured comes after it.

import { Chart, missing, there } from "./charts.js";
import { h, put } from "./dom.js";
import { duration } from "./format.js";

const SMOOTHED_FROM = 30;
const SMOOTHING = 0.15;

/** `names`: metrics, each a line; the chart is there where the first one is recorded. */
export const TRENDS = [
  {
    id: "reward",
    title: "Reward",
    names: { reward_mean: "mean", accuracy: "accuracy" },
    smooth: true,
    heldOut: true,
  },
  { id: "length", title: "Response length", unit: "tokens", names: { length_mean: "mean" } },
  { id: "entropy", title: "Entropy", unit: "nats a token", names: { entropy: "policy" } },
  { id: "kl", title: "KL", unit: "nats a token", note: "to the base model", names: { kl: "k3 estimate" } },
  {
    id: "logprob-error",
    title: "Logprob error",
    unit: "nats a token",
    note: "generation against training",
    names: { logprob_error: "mean" },
  },
  { id: "speed", title: "Generation speed", unit: "tokens/s", names: { tokens_per_second: "tokens/s" } },
  { id: "gradient", title: "Gradient norm", names: { grad_norm: "before clipping" } },
  { id: "loss", title: "Loss", names: { loss: "mean" }, smooth: true },
];
const PHASES = { rollout_s: "rollout", train_s: "train", refit_s: "refit" };
const COUNTED = new Set(["seconds", "num_tokens", "reward_std", "accuracy", ...Object.keys(PHASES)]);

/** Metrics that a run has, and no chart of its own. */
function others(metrics) {
  const charted = new Set(TRENDS.flatMap((trend) => Object.keys(trend.names)));
  return metrics.names.filter((name) => !charted.has(name) && !COUNTED.has(name) && recorded(metrics, name));
}

export function recorded(metrics, name) {
  return (metrics.series[name] ?? []).some((value) => value !== null);
}

/** Charts of one run. `update(metrics, evaluations, marks)` shows what is known now. */
export function trends(signal, pick) {
  const main = h("div", { class: "charts" });
  const more = h("div", { class: "charts small" });
  const rest = h("details", { class: "more", hidden: true }, h("summary", {}, "Other measurements"), more);
  const unrecorded = h("p", { class: "faint" });
  const element = h("div", {}, main, rest, unrecorded);
  const charts = new Map();

  function chart(id, home, options) {
    if (!charts.has(id)) {
      charts.set(id, new Chart({ ...options, sync: "trend", pick, signal }));
      home.append(charts.get(id).element);
    }
    return charts.get(id);
  }

  function update(metrics, evaluations, marks) {
    if (!there()) return put(element, missing());
    const steps = metrics.steps;
    if (!steps.length) return;
    for (const trend of TRENDS) {
      const names = Object.keys(trend.names).filter((name) => recorded(metrics, name));
      if (!names.includes(Object.keys(trend.names)[0])) continue;
      const seen = trend.heldOut ? evaluations.filter((one) => one.on_path !== false) : [];
      const { x, columns, lines } = columnsOf(metrics, trend, names, seen);
      const key = `${trend.id}/${lines.length}`;
      for (const [old, other] of charts) {
        if (old.startsWith(`${trend.id}/`) && old !== key) {
          other.element.remove();
          other.remove();
          charts.delete(old);
        }
      }
      const note = lines.some((line) => line.faint) ? "smoothed, over what was measured" : trend.note;
      chart(key, main, { ...trend, note, lines }).update([x, ...columns], marks);
    }
    if (recorded(metrics, "seconds")) phases(metrics, marks);
    for (const name of others(metrics)) {
      const lines = [{ label: name, color: "c1" }];
      chart(`other/${name}`, more, { title: name, lines, legend: true }).update(
        [steps, metrics.series[name]],
        marks,
      );
      rest.hidden = false;
    }
    const lacks = TRENDS.filter((trend) => !recorded(metrics, Object.keys(trend.names)[0])).map((trend) =>
      trend.title.toLowerCase(),
    );
    put(unrecorded, lacks.length ? `Not recorded by this run: ${lacks.join(", ")}.` : "");
    order();
  }

  function phases(metrics, marks) {
    const columns = Object.keys(PHASES).map((name) => metrics.series[name].map((value) => value ?? 0));
    const rest = metrics.series.seconds.map((whole, place) =>
      Math.max(0, (whole ?? 0) - columns.reduce((sum, column) => sum + column[place], 0)),
    );
    const labels = [...Object.values(PHASES), "rest"];
    const lines = labels.map((label, place) => ({ label, color: `p${place + 1}` }));
    chart("phases/4", main, {
      title: "Step time by phase",
      lines,
      stacked: true,
      format: (value) => (value === 0 ? "0" : duration(value)),
    }).update([metrics.steps, ...columns, rest], marks);
  }

  /** Charts appear as their metrics do: in the order of the list all the same. */
  function order() {
    const wanted = [...TRENDS.map((trend) => trend.id), "phases"];
    const made = [...charts].filter(([id]) => wanted.includes(id.split("/")[0]));
    made.sort(([a], [b]) => wanted.indexOf(a.split("/")[0]) - wanted.indexOf(b.split("/")[0]));
    const elements = made.map(([, one]) => one.element);
    if (elements.some((one, place) => main.children[place] !== one)) main.append(...elements);
  }

  return { element, update };
}

/** Lines of a trend: each metric, smoothed where it is long and noisy, and what was held out, as dots. */
function columnsOf(metrics, trend, names, evaluations) {
  let x = metrics.steps;
  let columns = names.map((name) => metrics.series[name]);
  const lines = names.map((name, place) => ({ label: trend.names[name], color: `c${place + 1}` }));
  if (trend.smooth && x.length >= SMOOTHED_FROM) {
    const raw = lines.map((line) => ({ ...line, faint: true }));
    lines.push(...raw);
    columns = [...columns.map(smoothed), ...columns];
  }
  if (evaluations.length) {
    const held = new Map(evaluations.map((one) => [one.step, one.accuracy]));
    const all = [...new Set([...x, ...held.keys()])].sort((a, b) => a - b);
    const places = new Map(x.map((step, place) => [step, place]));
    columns = columns.map((column) =>
      all.map((step) => (places.has(step) ? column[places.get(step)] : undefined)),
    );
    columns.push(all.map((step) => held.get(step) ?? null));
    lines.push({ label: "held-out", color: "c3", dots: true });
    x = all;
  }
  return { x, columns, lines };
}

/** An exponential mean, from the first value on. */
export function smoothed(column) {
  let mean = null;
  return column.map((value) => {
    if (value === null) return mean;
    mean = mean === null ? value : mean + SMOOTHING * (value - mean);
    return mean;
  });
}

/** Where in a run's steps incidents belong: at the first step that was finished after they were noticed. */
export function marksOf(metrics, incidents) {
  const ends = (metrics.finished_at ?? []).map((time) => Date.parse(time));
  return incidents.flatMap((incident) => {
    const place = ends.findIndex((end) => end >= Date.parse(incident.at));
    const took = incident.seconds === null ? "" : `, ${duration(incident.seconds)}`;
    return place < 0
      ? []
      : [{ step: metrics.steps[place], words: `${incident.lost}: ${incident.done}${took}` }];
  });
}
