// Run specs as flat lists of dotted keys.

import { h, row, table } from "./dom.js";

/** `[["grpo.max_num_steps", "40"], …]`, values as JSON. */
export function flat(value, key = "") {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    const inner = Object.entries(value);
    if (inner.length) return inner.flatMap(([name, one]) => flat(one, key ? `${key}.${name}` : name));
  }
  return [[key, JSON.stringify(value)]];
}

export function config(spec) {
  const columns = [{ label: "Key" }, { label: "Value" }];
  const rows = flat(spec).map(([key, value]) => row(columns, [h("code", {}, key), h("code", {}, value)]));
  return h(
    "details",
    { class: "more" },
    h("summary", {}, "The spec it was launched with"),
    table("Config", columns, rows, { class: "config" }),
  );
}
