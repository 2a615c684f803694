// One run, from far away: how it is, whether it learns, and what was lost on the way.

import { get, patiently, post, tell } from "./api.js";
import { config } from "./config.js";
import { h, put, row, table } from "./dom.js";
import { clock, duration, number, plural, size } from "./format.js";
import { actions, facts, heading, now } from "./head.js";
import { go, title } from "./main.js";
import { stepsTable } from "./steps.js";
import { follow, newest } from "./stream.js";
import { marksOf, trends } from "./trends.js";
import { atMost, behind, every, FINAL, loading, toPlace } from "./words.js";

export async function show(main, signal, run) {
  title(run);
  main.replaceChildren(loading(run));
  const at = `/v1/runs/${encodeURIComponent(run)}`;
  const known = {};
  const reading = {
    view: () => get(at, signal),
    metrics: () => get(`${at}/metrics`, signal),
    incidents: async () => (await get(`${at}/incidents`, signal)).incidents,
    checkpoints: async () => (await get(`${at}/checkpoints`, signal)).checkpoints,
    everything: async () => null,
  };
  const read = async (...what) => {
    const told = await patiently(signal, () => Promise.all(what.map((one) => reading[one]())));
    what.forEach((one, place) => (known[one] = told[place]));
  };

  const since = await patiently(signal, () => newest(signal));
  await read("view", "metrics", "incidents", "checkpoints");
  const page = build(main, signal, run, (view) => {
    known.view = view;
    draw();
  });
  const draw = () => page.draw(known);
  draw();
  toPlace();

  const stale = new Set();
  const refresh = atMost(1000, signal, async () => {
    const wanted = [...stale];
    stale.clear();
    if (wanted.includes("metrics")) await more(known, at, signal, wanted);
    await read(...wanted.filter((one) => one !== "metrics"));
    draw();
  });
  const AFFECTED = {
    step: ["view", "metrics"],
    checkpoint: ["view", "checkpoints"],
    evaluation: ["view"],
    event: ["view", "incidents"],
    state: ["view"],
    incarnation: ["view", "metrics", "everything"],
    registered: ["view", "metrics", "everything"],
  };
  every(4000, signal, () => {
    // How far its operations are is in no event.
    if (FINAL.has(known.view.phase)) return;
    stale.add("view");
    refresh();
  });
  follow(`${at}/events`, since, signal, (event) => {
    for (const one of AFFECTED[event.kind] ?? ["view"]) stale.add(one);
    refresh();
  });
}

/** Bring the metrics up to date: only new steps, unless older ones may have been taken back. */
async function more(known, at, signal, wanted) {
  const { metrics } = known;
  const last = metrics.steps.at(-1) ?? 0;
  const whole = wanted.includes("everything") || metrics.steps.length > 1500 || !metrics.finished_at?.length;
  const told = await patiently(signal, () => get(`${at}/metrics${whole ? "" : `?since=${last}`}`, signal));
  if (whole) return void (known.metrics = told);
  for (const name of ["steps", "incarnations", "finished_at"]) metrics[name].push(...told[name]);
  for (const name of told.names) {
    metrics.series[name] ??= new Array(metrics.steps.length - told.steps.length).fill(null);
  }
  metrics.names = [...new Set([...metrics.names, ...told.names])];
  for (const name of metrics.names) {
    metrics.series[name].push(...(told.series[name] ?? new Array(told.steps.length).fill(null)));
  }
}

function build(main, signal, run, changed) {
  const base = `/runs/${encodeURIComponent(run)}`;
  const act = (action) => behind(signal, async () => changed(await postAction(run, action)));
  const parts = {
    heading: h("div", {}),
    now: h("div", {}),
    facts: h("div", {}),
    trend: trends(signal, (step) => step > 0 && go(`${base}/steps/${step}`)),
    waiting: h("p", { class: "empty" }),
    incidents: h("div", {}),
    saved: h("div", {}),
    config: h("div", {}),
  };
  const buttons = actions(act);
  const steps = stepsTable(signal, run);
  const section = (id, name, ...content) =>
    h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, name), content);
  main.replaceChildren(
    h("header", { class: "head run" }, parts.heading, buttons.element),
    parts.now,
    parts.facts,
    h(
      "nav",
      { class: "inpage", "aria-label": "On this page" },
      ["Trend", "Incidents", "Steps", "Checkpoints", "Config"].map((name) =>
        h("a", { href: `#${name.toLowerCase()}` }, name),
      ),
      h("a", { href: `${base}/lineage` }, "Lineage"),
    ),
    section("trend", "Trend", parts.waiting, parts.trend.element),
    section("incidents", "Incidents", parts.incidents),
    section("steps", "Steps", steps.element),
    section("checkpoints", "Checkpoints and evaluations", parts.saved),
    section("config", "Config", parts.config),
  );

  function draw({ view, metrics, incidents, checkpoints }) {
    title(`${view.step}/${view.max_num_steps} ${view.phase} · ${view.id}`);
    const marks = marksOf(metrics, incidents);
    put(parts.heading, heading(view));
    put(parts.now, now(view, metrics, marks, checkpoints));
    put(parts.facts, facts(view, metrics));
    buttons.update(view);
    parts.waiting.hidden = metrics.steps.length > 0;
    parts.waiting.textContent = FINAL.has(view.phase)
      ? "It ended before its first step."
      : "The first step is on its way: charts begin with it.";
    if (metrics.steps.length) parts.trend.update(metrics, view.evaluations, marks);
    put(parts.incidents, incidentsTable(incidents));
    steps.update(view);
    put(parts.saved, saved(view, checkpoints));
    if (!parts.config.firstChild) put(parts.config, config(view.spec));
  }
  return { draw };
}

async function postAction(run, action) {
  const view = await post(`/v1/runs/${encodeURIComponent(run)}/${action}`);
  const coming = {
    pause: "It pauses after the step it is in.",
    stop: "It stops, with a checkpoint of the last finished step.",
    checkpoint: "It saves the step that it is in.",
    resume: "It goes on.",
  };
  tell(coming[action]);
  return view;
}

function incidentsTable(incidents) {
  if (!incidents.length) return h("p", { class: "faint" }, "Nothing was lost so far.");
  const columns = [
    { label: "Noticed" },
    { label: "Lost" },
    { label: "Cause" },
    { label: "What was done" },
    { label: "Took", number: true },
  ];
  const rows = [...incidents]
    .reverse()
    .map((one) =>
      row(columns, [
        h("time", { datetime: one.at }, clock(one.at)),
        h("span", { class: "lost" }, one.lost),
        one.cause,
        one.done,
        one.seconds === null ? "–" : duration(one.seconds),
      ]),
    );
  return table(plural(incidents.length, "incident"), columns, rows, { class: "words" });
}

function saved(view, checkpoints) {
  const scores = new Map(view.evaluations.map((one) => [`${one.incarnation}.${one.step}`, one]));
  const held = view.evaluations.map((one) =>
    h("li", {}, h("b", {}, number(one.accuracy)), ` at step ${one.step}`),
  );
  const evaluations = held.length
    ? h(
        "p",
        {},
        "Held-out accuracy: ",
        h("ol", { class: "inline" }, held),
        h("span", { class: "faint" }, ` (${plural(view.evaluations.at(-1).num_problems, "problem")})`),
      )
    : null;
  if (!checkpoints.length) return [evaluations, h("p", { class: "faint" }, "No checkpoint yet.")];
  const columns = [
    { label: "Step" },
    { label: "Incarnation", number: true },
    { label: "Held-out", number: true },
    { label: "Size", number: true },
    { label: "Digest" },
    { label: "Path" },
    { label: "" },
  ];
  const rows = [...checkpoints].reverse().map((one) =>
    row(
      columns,
      [
        h(
          "a",
          {
            href: `/runs/${encodeURIComponent(view.id)}/lineage?incarnation=${one.incarnation}&step=${one.step}`,
            title: "What made these weights",
          },
          String(one.step),
        ),
        String(one.incarnation),
        number(scores.get(`${one.incarnation}.${one.step}`)?.accuracy),
        size(one.num_bytes),
        h("code", {}, one.digest.slice(0, 12)),
        h("code", { class: "path" }, one.path),
        one.on_path ? "" : h("span", { class: "faint" }, "abandoned"),
      ],
      { id: `checkpoint-${one.incarnation}-${one.step}`, class: one.on_path ? null : "over" },
    ),
  );
  return [evaluations, table("Checkpoints, newest first", columns, rows)];
}
