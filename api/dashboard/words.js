// Words and small parts that several pages share.

import { Away, Problem, tell } from "./api.js";
import { h } from "./dom.js";
import { ago, clock } from "./format.js";

export const FINAL = new Set(["completed", "stopped", "failed"]);

/** A state as a word with a mark of its own shape: nobody needs to see its colour. */
export function state(phase) {
  return h("span", { class: `state ${phase}` }, phase);
}

export function runLink(run, ...rest) {
  return h("a", { class: "id", href: `/runs/${encodeURIComponent(run)}${rest.join("")}` }, run);
}

export function when(time) {
  return h("time", { datetime: time, title: clock(time) }, ago(time));
}

/** A command to type, and a button that copies it. */
export function command(text) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      tell(`Copied: ${text}`);
    } catch {
      tell("This browser does not let pages copy here: select the command instead.", true);
    }
  };
  return h(
    "span",
    { class: "command" },
    h("code", {}, text),
    h(
      "button",
      { type: "button", class: "quiet", "aria-label": `Copy ${text}`, on: { click: copy } },
      "Copy",
    ),
  );
}

/** The commands that are useful next, as the `ratchet` command itself suggests them. */
export function nextCommands(view) {
  const run = view.id;
  switch (view.phase) {
    case "failed":
      return [`ratchet run resume ${run}`, "ratchet logs", "ratchet status"];
    case "stopped":
      return [`ratchet run resume ${run}`];
    case "stalled":
      return ["ratchet status", "ratchet logs", `ratchet run stop ${run}`];
    case "paused":
      return [`ratchet run resume ${run}`];
    default:
      return [];
  }
}

export function crumbs(...parts) {
  return h(
    "nav",
    { class: "crumbs", "aria-label": "Where this is" },
    h("a", { href: "/" }, "Runs"),
    parts.map((part) => [h("span", { "aria-hidden": "true" }, "/"), part]),
  );
}

export function loading(what) {
  return h("p", { class: "empty", role: "status" }, `Loading ${what} …`);
}

/** Go to what the address names on this page, as browsers do where the page is there from the start. */
export function toPlace() {
  const place = location.hash && document.getElementById(location.hash.slice(1));
  if (!place) return;
  place.scrollIntoView({ block: "center" });
  place.classList.add("meant");
}

/** Work that nobody waits for: a page that was left meanwhile is no error, and what the API says is told. */
export async function behind(signal, work) {
  try {
    await work();
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Problem || error instanceof Away)) throw error;
    tell(error.message, true);
  }
}

/** A function that has `work` done soon after each call, and at most once in so many milliseconds. */
export function atMost(milliseconds, signal, work) {
  let timer = null;
  let last = -Infinity;
  let again = false;
  const ask = () => {
    if (signal.aborted) return;
    if (timer !== null) {
      again = true; // it may have begun already, with what was known then
      return;
    }
    const wait = Math.max(30, last + milliseconds - performance.now());
    timer = setTimeout(async () => {
      again = false;
      last = performance.now();
      await behind(signal, work);
      timer = null;
      if (again) ask();
    }, wait);
  };
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  return ask;
}

export function every(milliseconds, signal, work) {
  const timer = setInterval(() => !document.hidden && behind(signal, work), milliseconds);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
}
