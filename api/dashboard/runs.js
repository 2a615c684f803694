// Every run, the newest first; rows change as events come.

import { get, patiently } from "./api.js";
import { h, put, row, table } from "./dom.js";
import { ago, clock, number, percent, plural } from "./format.js";
import { go, title } from "./main.js";
import { follow, newest } from "./stream.js";
import { atMost, command, every, FINAL, loading, runLink, state, when } from "./words.js";

const PHASES = [
  "queued",
  "starting",
  "running",
  "recovering",
  "stalled",
  "paused",
  "stopping",
  "completed",
  "stopped",
  "failed",
];
const COLUMNS = [
  { label: "Run" },
  { label: "State" },
  { label: "Step", number: true },
  { label: "Reward", number: true },
  { label: "ETTR", number: true },
  { label: "Last incident" },
  { label: "Started" },
  { label: "Compare" },
];
const PAGE = 50;

export async function show(main, signal) {
  title("Runs");
  const asked = new URLSearchParams(location.search);
  const chosen = new Set();
  const list = h("section", { "aria-label": "Runs" }, loading("runs"));
  const compare = h("a", { class: "button", hidden: true });
  main.replaceChildren(h("header", { class: "head" }, h("h1", {}, "Runs"), filters(asked, compare)), list);

  const query = new URLSearchParams({ limit: PAGE });
  for (const name of ["phase", "name", "cursor"]) {
    for (const value of asked.getAll(name)) query.append(name, value);
  }
  let found = { runs: [], next_cursor: null };
  const drawn = new Map();

  const choose = (run, on) => {
    if (on) chosen.add(run);
    else chosen.delete(run);
    compare.hidden = chosen.size < 2;
    compare.setAttribute("href", `/compare?runs=${[...chosen].join(",")}`);
    compare.textContent = `Compare ${plural(chosen.size, "run")}`;
  };

  function draw() {
    if (!found.runs.length) return put(list, empty(asked));
    const rows = found.runs.map((run) => {
      const made = rowOf(run, chosen.has(run.id), choose);
      const old = drawn.get(run.id);
      if (old?.isConnected && old.isEqualNode(made)) return old;
      drawn.set(run.id, made);
      return made;
    });
    const body = list.querySelector("tbody");
    if (!body)
      return list.replaceChildren(
        table("Runs, newest first", COLUMNS, rows, { class: "runs" }),
        pager(asked, found),
      );
    if (rows.length !== body.children.length || rows.some((one, place) => one !== body.children[place])) {
      const focused = document.activeElement?.closest("tr")?.dataset.run;
      const which = [...(document.activeElement?.closest("tr")?.querySelectorAll("a, input") ?? [])].indexOf(
        document.activeElement,
      );
      body.replaceChildren(...rows);
      if (focused && which >= 0) drawn.get(focused)?.querySelectorAll("a, input")[which]?.focus();
    }
    list.querySelector(".pager").replaceWith(pager(asked, found));
  }

  async function load() {
    found = await patiently(signal, () => get(`/v1/runs?${query}`, signal));
    draw();
  }

  const since = await patiently(signal, () => newest(signal));
  await load();
  const again = atMost(1500, signal, load);
  const soon = atMost(100, signal, draw);
  every(15000, signal, draw); // ages
  every(30000, signal, load); // what events do not tell
  follow("/v1/events", since, signal, (event) => {
    const run = found.runs.find((one) => one.id === event.run);
    if (run) apply(run, event);
    if (event.kind === "registered" || (event.kind === "state" && asked.has("phase"))) again();
    else if (run) soon();
  });
}

/** What an event changes in a row. */
function apply(run, event) {
  const { data } = event;
  run.incarnation = Math.max(run.incarnation, event.incarnation);
  if (event.kind === "state") {
    run.phase = data.phase;
    run.step = data.step;
    run.fault = data.fault;
  } else if (event.kind === "step") {
    run.step = data.step;
    run.reward_mean = data.reward_mean;
  } else if (event.kind === "incarnation") {
    run.step = data.restored_step;
  } else if (event.kind === "event" && data.topic === "incident") {
    run.last_incident = { ...data.data, at: new Date(1000 * data.data.detected_at).toISOString() };
  }
}

function rowOf(run, isChosen, choose) {
  const share = run.max_num_steps ? Math.min(1, run.step / run.max_num_steps) : 0;
  const incident = run.last_incident;
  const box = h("input", {
    type: "checkbox",
    "aria-label": `Compare ${run.id}`,
    on: { change: (event) => choose(run.id, event.target.checked) },
  });
  box.checked = isChosen;
  const why =
    run.queue?.words ?? (run.phase === "failed" || run.phase === "stalled" ? run.fault?.message : null);
  return row(
    COLUMNS,
    [
      [
        runLink(run.id),
        h(
          "span",
          { class: "faint under" },
          run.name,
          run.incarnation > 1 && `, incarnation ${run.incarnation}`,
        ),
      ],
      [state(run.phase), why && h("span", { class: "why", title: why }, why)],
      h(
        "span",
        { class: "progress" },
        h(
          "span",
          {},
          h("b", {}, run.step.toLocaleString("en")),
          h("span", { class: "faint" }, ` / ${run.max_num_steps.toLocaleString("en")}`),
        ),
        h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { width: `${100 * share}%` } })),
      ),
      number(run.reward_mean),
      percent(run.ettr),
      incident
        ? [
            h("span", { class: "lost", title: incident.cause }, incident.lost),
            h("span", { class: "faint" }, ` ${ago(incident.at)}`),
          ]
        : h("span", { class: "faint" }, "none"),
      when(run.created_at),
      box,
    ],
    {
      "data-run": run.id,
      class: FINAL.has(run.phase) ? "over" : null,
      title: `Started ${clock(run.created_at)}`,
    },
  );
}

function filters(asked, compare) {
  const phase = h(
    "select",
    { name: "phase", id: "phase" },
    h("option", { value: "" }, "any state"),
    PHASES.map((one) => h("option", { value: one }, one)),
  );
  phase.value = asked.get("phase") ?? "";
  const name = h("input", {
    name: "name",
    id: "name",
    type: "search",
    placeholder: "any recipe",
    pattern: "[a-z0-9][a-z0-9\\-]{0,39}",
    title: "lower-case letters, digits and dashes",
    autocomplete: "off",
    spellcheck: "false",
  });
  name.value = asked.get("name") ?? "";
  const apply = (event) => {
    event.preventDefault();
    if (!name.reportValidity()) return;
    const wanted = new URLSearchParams();
    if (phase.value) wanted.set("phase", phase.value);
    if (name.value) wanted.set("name", name.value);
    go(wanted.size ? `/?${wanted}` : "/");
  };
  return h(
    "form",
    { class: "filters", role: "search", on: { submit: apply, change: apply } },
    compare,
    h("label", {}, h("span", {}, "State"), phase),
    h("label", {}, h("span", {}, "Recipe"), name),
  );
}

function pager(asked, found) {
  const older = new URLSearchParams(asked);
  older.set("cursor", found.next_cursor ?? "");
  const first = new URLSearchParams(asked);
  first.delete("cursor");
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    asked.has("cursor") && h("a", { class: "button", href: `/?${first}` }, "Newest"),
    found.next_cursor && h("a", { class: "button", href: `/?${older}` }, "Older runs"),
    !found.next_cursor &&
      !asked.has("cursor") &&
      h("span", { class: "faint" }, plural(found.runs.length, "run")),
  );
}

function empty(asked) {
  if (asked.size)
    return h(
      "div",
      { class: "empty" },
      h("h2", {}, "No such runs"),
      h("p", {}, "Nothing matches these filters. ", h("a", { href: "/" }, "See all runs")),
    );
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "No runs yet"),
    h("p", {}, "Launch one, and it shows up here by itself:"),
    command("ratchet run launch recipes/tiny-addition.yaml"),
  );
}
