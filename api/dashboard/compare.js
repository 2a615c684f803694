// Runs over each other: their trends, and the keys of their specs that differ.

import { get, patiently, Problem, tell } from "./api.js";
import { Chart, missing, there } from "./charts.js";
import { flat } from "./config.js";
import { h, put, row, table } from "./dom.js";
import { duration, number, percent, plural } from "./format.js";
import { go, title } from "./main.js";
import { recorded, smoothed, TRENDS } from "./trends.js";
import { every, FINAL, loading, runLink, state } from "./words.js";

const MOST = 8;
const POINTS = 500;
const LONGER = 60;
const STEP_TIME = {
  id: "seconds",
  title: "Step time",
  names: { seconds: "step" },
  format: (value) => (value === 0 ? "0" : duration(value)),
};

export async function show(main, signal) {
  title("Compare");
  const names = [
    ...new Set((new URLSearchParams(location.search).get("runs") ?? "").split(",").filter(Boolean)),
  ];
  const content = h("div", { class: "stack" });
  main.replaceChildren(
    h("header", { class: "head" }, h("h1", {}, "Compare"), await adder(signal, names)),
    content,
  );
  if (!names.length) {
    content.append(
      h(
        "div",
        { class: "empty" },
        h("h2", {}, "No runs chosen"),
        h("p", {}, "Name one above, or tick some in the ", h("a", { href: "/" }, "list of runs"), "."),
      ),
    );
    return;
  }
  content.append(loading(plural(names.length, "run")));
  const charts = new Map();
  const parts = { legend: h("div", {}), trend: h("div", { class: "charts" }), config: h("div", {}) };

  async function load() {
    const runs = await patiently(signal, () =>
      Promise.all(names.slice(0, MOST).map((name, place) => read(name, place, signal))),
    );
    const found = runs.filter((run) => run.view);
    put(parts.legend, legend(runs, names));
    if (!there()) put(parts.trend, missing());
    else overlay(parts.trend, charts, found, signal);
    if (!parts.config.firstChild) put(parts.config, differences(found));
    return found;
  }
  const found = await load();
  content.replaceChildren(
    parts.legend,
    names.length > MOST
      ? h("p", { class: "faint" }, `The first ${MOST} of ${names.length} runs are shown.`)
      : "",
    h("section", { "aria-labelledby": "trend" }, h("h2", { id: "trend" }, "Trend"), parts.trend),
    h("section", { "aria-labelledby": "config" }, h("h2", { id: "config" }, "What differs"), parts.config),
  );
  if (found.some((run) => !FINAL.has(run.view.phase))) every(5000, signal, load);
}

async function read(name, place, signal) {
  const at = `/v1/runs/${encodeURIComponent(name)}`;
  try {
    const [view, metrics] = await Promise.all([
      get(at, signal),
      get(`${at}/metrics?points=${POINTS}`, signal),
    ]);
    return { name, view, metrics, color: `c${place + 1}` };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return { name, problem: error.detail };
  }
}

async function adder(signal, names) {
  const known = await patiently(signal, () => get("/v1/runs?limit=100", signal));
  const field = h("input", {
    id: "add",
    list: "known",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    placeholder: "run id",
  });
  const add = (event) => {
    event.preventDefault();
    const name = field.value.trim();
    if (names.includes(name)) return tell(`${name} is here already.`);
    go(address([...names, name]));
  };
  return h(
    "form",
    { class: "filters", on: { submit: add } },
    h("label", { for: "add" }, h("span", {}, "Run"), field),
    h(
      "datalist",
      { id: "known" },
      known.runs.map((run) => h("option", { value: run.id })),
    ),
    h("button", {}, "Add"),
  );
}

const address = (names) =>
  `/compare${names.length ? `?runs=${names.map(encodeURIComponent).join(",")}` : ""}`;

function legend(runs, names) {
  const columns = [
    { label: "Run" },
    { label: "State" },
    { label: "Step", number: true },
    { label: "Reward", number: true },
    { label: "Held-out", number: true },
    { label: "ETTR", number: true },
    { label: "Took", number: true },
    { label: "" },
  ];
  const rows = runs.map(({ name, view, problem, color }) => {
    const less = h(
      "a",
      { class: "button", href: address(names.filter((one) => one !== name)), "aria-label": `Remove ${name}` },
      "Remove",
    );
    if (!view) return row(columns, [name, h("span", { class: "lost" }, problem), "", "", "", "", "", less]);
    const took = (Date.parse(view.ended_at ?? view.updated_at) - Date.parse(view.created_at)) / 1000;
    return row(columns, [
      [h("i", { class: "key", style: { background: `var(--${color})` } }), runLink(name)],
      state(view.phase),
      `${view.step} / ${view.max_num_steps}`,
      number(view.reward_mean),
      number(view.evaluations.at(-1)?.accuracy),
      percent(view.ettr),
      duration(took),
      less,
    ]);
  });
  return table("Runs that are compared", columns, rows, { class: "runs-compared" });
}

/** A chart for each trend that one of the runs has; a line for each run. */
function overlay(home, charts, runs, signal) {
  const x = [...new Set(runs.flatMap((run) => run.metrics.steps))].sort((a, b) => a - b);
  if (!x.length) return put(home, h("p", { class: "empty" }, "None of these runs has trained a step yet."));
  const place = new Map(x.map((step, index) => [step, index]));
  for (const trend of [...TRENDS, STEP_TIME]) {
    const name = Object.keys(trend.names)[0];
    const having = runs.filter((run) => recorded(run.metrics, name));
    if (!having.length) continue;
    const key = `${trend.id}/${having.map((run) => run.name).join(",")}`;
    if (!charts.has(key)) {
      const lines = having.map((run) => ({ label: run.name, color: run.color }));
      const { title, unit, format } = trend;
      const note = trend.smooth && x.length >= LONGER ? "smoothed" : trend.note;
      charts.set(key, new Chart({ title, unit, note, format, lines, sync: "compare", signal }));
      home.append(charts.get(key).element);
    }
    const columns = having.map((run) => {
      const told = run.metrics.series[name];
      const values = trend.smooth && x.length >= LONGER ? smoothed(told) : told;
      const column = new Array(x.length).fill(having.length > 1 ? undefined : null);
      run.metrics.steps.forEach((step, index) => (column[place.get(step)] = values[index]));
      return column;
    });
    charts.get(key).update([x, ...columns]);
  }
}

function differences(runs) {
  const specs = runs.map((run) => new Map(flat(run.view.spec)));
  const keys = [...new Set(specs.flatMap((spec) => [...spec.keys()]))];
  const differing = keys.filter((key) => new Set(specs.map((spec) => spec.get(key))).size > 1);
  if (runs.length < 2)
    return h("p", { class: "faint" }, "Add another run, and the keys that differ show up here.");
  const same = plural(keys.length - differing.length, "key");
  if (!differing.length)
    return h("p", { class: "faint" }, `Nothing: all ${same} of their specs are the same.`);
  const columns = [{ label: "Key" }, ...runs.map((run) => ({ label: run.name }))];
  const rows = differing.map((key) =>
    row(columns, [
      h("code", {}, key),
      ...specs.map((spec) =>
        spec.has(key) ? h("code", {}, spec.get(key)) : h("span", { class: "faint" }, "not there"),
      ),
    ]),
  );
  return [
    table("Keys that differ", columns, rows, { class: "config" }),
    h("p", { class: "faint" }, `${same} are the same.`),
  ];
}
