// Where weights come from, and what became of them.

import { get, patiently } from "./api.js";
import { h, row, table } from "./dom.js";
import { clock } from "./format.js";
import { draw } from "./graph.js";
import { go, title } from "./main.js";
import { crumbs, loading, runLink } from "./words.js";

const DIRECTIONS = { up: "Where they come from", down: "What became of them" };

export async function show(main, signal, run) {
  const base = `/runs/${encodeURIComponent(run)}`;
  const asked = new URLSearchParams(location.search);
  const direction = asked.get("direction") === "down" ? "down" : "up";
  title(`Lineage · ${run}`);
  main.replaceChildren(loading("lineage"));
  const query = new URLSearchParams({ direction });
  for (const name of ["incarnation", "step"]) if (asked.get(name)) query.set(name, asked.get(name));
  const lineage = await patiently(signal, () => get(`/v1${base}/lineage?${query}`, signal));
  const to = (which) =>
    `${base}/lineage?${new URLSearchParams({ direction: which, incarnation: lineage.incarnation, step: lineage.step })}`;
  const step = h("input", {
    type: "number",
    id: "step",
    min: "0",
    step: "1",
    required: true,
    value: String(lineage.step),
  });
  const choose = (event) => {
    event.preventDefault();
    go(`${base}/lineage?${new URLSearchParams({ direction, step: step.value })}`);
  };
  main.replaceChildren(
    h(
      "header",
      { class: "head" },
      h(
        "div",
        {},
        crumbs(runLink(run), h("span", { "aria-current": "page" }, "lineage")),
        h("h1", {}, `Weights after step ${lineage.step}`),
        h(
          "p",
          { class: "faint" },
          `Incarnation ${lineage.incarnation}. ${direction === "up" ? "Everything that made them, from the base model on." : "Everything that grew from them."}`,
        ),
      ),
      h(
        "form",
        { class: "filters", on: { submit: choose } },
        h("label", { for: "step" }, h("span", {}, "Step"), step),
        h("button", {}, "Show"),
      ),
    ),
    h(
      "nav",
      { class: "inpage", "aria-label": "Direction" },
      Object.entries(DIRECTIONS).map(([which, words]) =>
        h("a", { href: to(which), "aria-current": which === direction ? "true" : null }, words),
      ),
    ),
    draw(lineage, direction, `${DIRECTIONS[direction]}, from left to right`),
    h(
      "p",
      { class: "faint" },
      "A box leads to its step, its mark to the checkpoint. Broken lines are restores and forks: the same weights, in another life.",
    ),
    h("section", { "aria-labelledby": "lives" }, h("h2", { id: "lives" }, "Made with"), lives(lineage)),
  );
}

function lives(lineage) {
  const columns = [
    { label: "Run" },
    { label: "Incarnation", number: true },
    { label: "Opened" },
    { label: "Grew from" },
    { label: "Seed", number: true },
    { label: "Spec" },
    { label: "Code" },
    { label: "Inputs" },
  ];
  const short = (value) => h("code", { title: String(value) }, String(value).slice(0, 12));
  const pairs = (mapping) =>
    Object.entries(mapping).map(([name, value]) =>
      h(
        "span",
        { class: "pair" },
        `${name} `,
        short(typeof value === "object" ? JSON.stringify(value) : value),
      ),
    );
  const rows = lineage.lives.map((life) =>
    row(columns, [
      runLink(life.run),
      String(life.incarnation),
      clock(life.opened_at),
      life.from_checkpoint
        ? [
            `step ${life.restored_step}`,
            life.parent && life.parent.run !== life.run && [" of ", runLink(life.parent.run)],
          ]
        : ["base model ", life.model_digest && short(life.model_digest)],
      String(life.seed),
      short(life.spec_digest),
      pairs(life.code),
      pairs(life.inputs),
    ]),
  );
  return table("Lives on this line, the one asked about first", columns, rows, { class: "lives" });
}
