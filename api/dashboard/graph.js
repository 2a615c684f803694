// Lineage as a graph, from left to right: weights are boxes, what was done to them are the lines between.

import { h, s } from "./dom.js";
import { number, plural } from "./format.js";

const BOX = { wide: 136, tall: 50 };
const GAP = { x: 92, y: 38 };
const EDGE = 20;

const nameOf = (one) => `${one.run}/${one.incarnation}.${one.step}`;

/** Boxes and lines of an API's lineage. */
export function shapeOf(lineage, direction) {
  const boxes = new Map();
  const lines = [];
  const lanes = new Map(
    lineage.lives
      .toSorted((a, b) => Date.parse(a.opened_at) - Date.parse(b.opened_at))
      .map((life, lane) => [`${life.run}/${life.incarnation}`, lane]),
  );
  const box = (weights) => {
    const name = nameOf(weights);
    if (!boxes.has(name))
      boxes.set(name, {
        name,
        ...weights,
        lane: lanes.get(`${weights.run}/${weights.incarnation}`) ?? 0,
        layer: 0,
      });
    const known = boxes.get(name);
    known.digest ??= weights.digest;
    return known;
  };
  for (const one of lineage.training) {
    const prompts = `prompts ${one.cursor_start} to ${one.cursor_end - 1}`;
    lines.push({
      from: box(one.before).name,
      to: box(one.after).name,
      label: plural(one.num_steps, "step"),
      words: `trained ${plural(one.num_steps, "step")} on ${prompts}`,
      kind: "trained",
    });
  }
  for (const life of lineage.lives) {
    if (direction === "down" && life.depth === 0) continue; // how it began is not asked
    const first = { run: life.run, incarnation: life.incarnation, step: life.restored_step, digest: null };
    if (life.parent) {
      const forked = life.parent.run !== life.run;
      const from = box(life.parent);
      lines.push({
        from: from.name,
        to: box({ ...first, digest: life.parent.digest }).name,
        label: forked ? "forked" : "restored",
        words: forked
          ? `run ${life.run} was forked from these`
          : `incarnation ${life.incarnation} was restored from these`,
        kind: "grown",
      });
    } else if (!life.from_checkpoint) {
      const name = `base/${life.model_digest}`;
      if (!boxes.has(name))
        boxes.set(name, { name, base: true, digest: life.model_digest, lane: box(first).lane, layer: 0 });
      lines.push({
        from: name,
        to: box(first).name,
        label: "loaded",
        words: "the base model was loaded",
        kind: "grown",
      });
    }
  }
  if (lineage.lives.length)
    box({ run: lineage.run, incarnation: lineage.incarnation, step: lineage.step, digest: null });
  for (const saved of lineage.checkpoints) box(saved).saved = saved;
  for (const scored of lineage.evaluations) box(scored).scored = scored;
  place(boxes, lines);
  return { boxes: [...boxes.values()], lines };
}

/** Every box right of all that lead to it. */
function place(boxes, lines) {
  for (let round = 0, moved = true; moved && round <= boxes.size; round += 1) {
    moved = false;
    for (const line of lines) {
      const [from, to] = [boxes.get(line.from), boxes.get(line.to)];
      if (to.layer <= from.layer) {
        to.layer = from.layer + 1;
        moved = true;
      }
    }
  }
}

export function draw(lineage, direction, label) {
  const { boxes, lines } = shapeOf(lineage, direction);
  const at = (one) => ({ x: EDGE + one.layer * (BOX.wide + GAP.x), y: EDGE + one.lane * (BOX.tall + GAP.y) });
  const by = new Map(boxes.map((one) => [one.name, one]));
  const wide = 2 * EDGE + Math.max(0, ...boxes.map((one) => at(one).x - EDGE + BOX.wide));
  const tall = 2 * EDGE + Math.max(0, ...boxes.map((one) => at(one).y - EDGE + BOX.tall));
  const asked = nameOf(lineage);
  const picture = s(
    "svg",
    {
      class: "lineage",
      width: wide,
      height: tall,
      viewBox: `0 0 ${wide} ${tall}`,
      role: "group",
      "aria-label": label,
    },
    lines.map((line) => lineOf(line, at(by.get(line.from)), at(by.get(line.to)))),
    boxes.map((one) => boxOf(one, at(one), one.name === asked, lineage.run)),
  );
  const home = h(
    "div",
    { class: "scroll graph", tabindex: "0", role: "region", "aria-label": label },
    picture,
  );
  const mine = by.get(asked);
  // What was asked about is in sight at once, however long the way to it is.
  if (mine) requestAnimationFrame(() => (home.scrollLeft = at(mine).x + BOX.wide + EDGE - home.clientWidth));
  return home;
}

function lineOf(line, from, to) {
  const [x1, y1] = [from.x + BOX.wide, from.y + BOX.tall / 2];
  const [x2, y2] = [to.x, to.y + BOX.tall / 2];
  const bend = Math.min(GAP.x / 2, (x2 - x1) / 2);
  return s(
    "g",
    { class: `edge ${line.kind}` },
    s("title", {}, line.words),
    s("path", { d: `M${x1} ${y1} H${x2 - 2 * bend} C${x2 - bend} ${y1} ${x2 - bend} ${y2} ${x2 - 5} ${y2}` }),
    s("path", { class: "tip", d: `M${x2 - 7} ${y2 - 4} L${x2} ${y2} L${x2 - 7} ${y2 + 4} Z` }),
    y1 === y2
      ? s("text", { x: x2 - GAP.x / 2, y: y2 - 7 }, line.label)
      : s("text", { class: "bent", x: x2 - 12, y: y2 + (y2 > y1 ? 18 : -10) }, line.label),
  );
}

function boxOf(one, { x, y }, asked, run) {
  if (one.base)
    return s(
      "g",
      { class: "box base" },
      s("title", {}, `base model ${one.digest ?? "of an unknown digest"}`),
      outline(x, y),
      s("text", { class: "head", x: x + 12, y: y + 21 }, "base model"),
      s("text", { x: x + 12, y: y + 38 }, (one.digest ?? "?").slice(0, 12)),
    );
  const home = `/runs/${encodeURIComponent(one.run)}`;
  const href = one.step > 0 ? `${home}/steps/${one.step}` : home;
  const words = `${one.run}, incarnation ${one.incarnation}, weights after step ${one.step}${one.saved ? ", saved" : ""}${one.scored ? `, held-out accuracy ${number(one.scored.accuracy)}` : ""}`;
  const note = one.scored ? `held-out ${number(one.scored.accuracy)}` : (one.digest ?? "").slice(0, 12);
  return s(
    "g",
    { class: `box${asked ? " asked" : ""}${one.run === run ? "" : " other"}` },
    s(
      "a",
      { href, "aria-label": words },
      s("title", {}, words),
      outline(x, y),
      s("text", { class: "head", x: x + 12, y: y + 21 }, `step ${one.step}`),
      s("text", { x: x + 12, y: y + 38 }, note),
      s("text", { class: "life", x: x + BOX.wide - 10, y: y + 21 }, `i${one.incarnation}`),
    ),
    one.saved &&
      s(
        "a",
        {
          class: "saved",
          href: `${home}#checkpoint-${one.incarnation}-${one.step}`,
          "aria-label": `The checkpoint of step ${one.step}`,
        },
        s("title", {}, `checkpoint ${one.saved.path}`),
        s("rect", { x: x + BOX.wide - 24, y: y + BOX.tall - 23, width: 14, height: 14, rx: 2 }),
        s("path", { d: `M${x + BOX.wide - 21} ${y + BOX.tall - 16} l3 3 l5 -6` }),
      ),
  );
}

function outline(x, y) {
  return s("rect", { class: "outline", x, y, width: BOX.wide, height: BOX.tall, rx: 5 });
}
