// How often each value was: a bar for each, or for each of twenty ranges where there are many.

import { h, s } from "./dom.js";
import { number, plural } from "./format.js";

const MOST_VALUES = 12;
const RANGES = 20;
const WIDTH = 480;
const HEIGHT = 150;
const FOOT = 22;
const HEAD = 16;

export function histogram(values, what) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return h("p", { class: "faint" }, "Nothing was measured.");
  const bins = binsOf(known);
  const most = Math.max(...bins.map((bin) => bin.count));
  const wide = WIDTH / bins.length;
  const width = Math.min(wide - 2, 64);
  const words = bins.map((bin) => `${bin.name}: ${bin.count}`).join(", ");
  const every = Math.ceil(bins.length / 8);
  return s(
    "svg",
    {
      class: "histogram",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `${plural(known.length, "sample")} by ${what}: ${words}`,
    },
    bins.map((bin, place) => {
      const tall = ((HEIGHT - FOOT - HEAD) * bin.count) / most;
      const middle = (place + 0.5) * wide;
      return s(
        "g",
        {},
        s(
          "rect",
          {
            x: middle - width / 2,
            y: HEIGHT - FOOT - tall,
            width,
            height: Math.max(tall, bin.count ? 1.5 : 0),
            rx: 2,
          },
          s("title", {}, `${bin.name}: ${bin.count}`),
        ),
        bins.length <= MOST_VALUES &&
          bin.count > 0 &&
          s(
            "text",
            { class: "much", x: middle, y: HEIGHT - FOOT - tall - 5 },
            bin.count.toLocaleString("en"),
          ),
        place % every === 0 && s("text", { x: middle, y: HEIGHT - 6 }, bin.label),
      );
    }),
    s("path", { class: "line", d: `M0 ${HEIGHT - FOOT + 0.5} H${WIDTH}` }),
  );
}

function binsOf(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  if (counts.size <= MOST_VALUES) {
    return [...counts]
      .sort(([a], [b]) => a - b)
      .map(([value, count]) => ({ name: number(value), label: number(value), count }));
  }
  const low = Math.min(...values);
  const high = Math.max(...values);
  const wide = (high - low) / RANGES;
  const bins = Array.from({ length: RANGES }, (_, place) => ({
    name: `${number(low + place * wide)} to ${number(low + (place + 1) * wide)}`,
    label: number(low + place * wide),
    count: 0,
  }));
  for (const value of values) bins[Math.min(RANGES - 1, Math.floor((value - low) / wide))].count += 1;
  return bins;
}
