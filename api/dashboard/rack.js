// How far a run is, as a rack that only moves one way: a tooth for every few steps, with what was lost above it
// and what was saved below.

import { s } from "./dom.js";
import { plural } from "./format.js";

const WIDTH = 1000;
const MOST_TEETH = 100;
/** CSS pixels; narrower ones would run together. */
const NARROWEST = 9;
const TOP = 9;
const FOOT = 25;

/** `losses`: {step, words}; `saves`: steps. */
export function rack(step, total, losses = [], saves = []) {
  const count = Math.max(1, Math.min(total, MOST_TEETH, Math.floor(document.body.clientWidth / NARROWEST)));
  const done = total ? Math.min(1, step / total) : 0;
  const wide = WIDTH / count;
  let teeth = `M0 ${FOOT}`;
  for (let tooth = 0; tooth < count; tooth += 1) {
    teeth += ` L${((tooth + 1) * wide).toFixed(2)} ${TOP} V${FOOT}`;
  }
  const place = (at) => ((WIDTH * Math.min(at, total)) / Math.max(total, 1)).toFixed(2);
  const words = `${step} of ${plural(total, "step")}`;
  return s(
    "svg",
    {
      class: "rack",
      viewBox: `0 0 ${WIDTH} 34`,
      preserveAspectRatio: "none",
      role: "progressbar",
      "aria-label": "Progress",
      "aria-valuemin": "0",
      "aria-valuemax": String(total),
      "aria-valuenow": String(step),
      "aria-valuetext": words,
    },
    s("clipPath", { id: "rack-done" }, s("rect", { x: 0, y: 0, width: WIDTH * done, height: 34 })),
    s("path", { class: "rack-all", d: `${teeth} Z` }),
    s("path", { class: "rack-done", d: `${teeth} Z`, "clip-path": "url(#rack-done)" }),
    saves.map((at) =>
      s(
        "path",
        { class: "rack-save", d: `M${place(at)} 28 V33` },
        s("title", {}, `Checkpoint of step ${at}`),
      ),
    ),
    losses.map((loss) =>
      s("path", { class: "rack-loss", d: `M${place(loss.step)} 0 V${FOOT}` }, s("title", {}, loss.words)),
    ),
  );
}
