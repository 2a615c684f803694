// Which page an address is, and going from one to the next without loading the document again.

import { Problem } from "./api.js";
import * as compare from "./compare.js";
import { h } from "./dom.js";
import * as lineage from "./lineage.js";
import * as record from "./record.js";
import * as run from "./run.js";
import * as runs from "./runs.js";
import * as step from "./step.js";
import { chooseTheme } from "./themes.js";

const PAGES = [
  [/^\/$/, runs],
  [/^\/compare$/, compare],
  [/^\/runs\/([^/]+)$/, run],
  [/^\/runs\/([^/]+)\/lineage$/, lineage],
  [/^\/runs\/([^/]+)\/steps\/(\d+)$/, step],
  [/^\/runs\/([^/]+)\/records\/(\d+)$/, record],
];
const main = document.getElementById("main");
let leaving = new AbortController();
let shown = "";

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const path = location.pathname;
  shown = path + location.search;
  for (const link of document.querySelectorAll(".top nav a")) {
    const here =
      link.getAttribute("href") === path || (link.getAttribute("href") === "/" && path.startsWith("/runs/"));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const [pattern, page] of PAGES) {
    const found = pattern.exec(path);
    if (!found) continue;
    try {
      await page.show(main, signal, ...found.slice(1).map(decodeURIComponent));
    } catch (error) {
      if (!signal.aborted) wrong(error);
    }
    return;
  }
  nothing(`There is no page ${path}.`);
}

/** Go to a page of ours. */
export function go(address, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
  return show();
}

function wrong(error) {
  if (error instanceof Problem && error.status === 404) return nothing(error.detail);
  if (!(error instanceof Problem)) console.error(error);
  const told = error instanceof Problem ? error.detail : `This page has a defect (${error.message}).`;
  title("Something went wrong");
  main.replaceChildren(
    h(
      "section",
      { class: "empty" },
      h("h1", {}, error.title ?? "Something went wrong"),
      h("p", {}, told),
      h(
        "p",
        {},
        h("a", { href: location.href }, "Try again"),
        " or see ",
        h("a", { href: "/" }, "all runs"),
        ".",
      ),
    ),
  );
}

function nothing(told) {
  title("Not found");
  main.replaceChildren(
    h(
      "section",
      { class: "empty" },
      h("h1", {}, "Not found"),
      h("p", {}, told),
      h("p", {}, h("a", { href: "/" }, "See all runs")),
    ),
  );
}

export function title(text) {
  document.title = text ? `${text} · Ratchet` : "Ratchet";
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (
    !link ||
    event.defaultPrevented ||
    event.button ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return;
  const to = new URL(link.getAttribute("href"), location.href); // links in SVG have no text in .href
  if (link.getAttribute("target") || to.origin !== location.origin || to.pathname.startsWith("/v1/")) return;
  if (to.pathname === location.pathname && to.search === location.search && to.hash) return;
  event.preventDefault();
  go(to.pathname + to.search + to.hash);
});
addEventListener("popstate", () => {
  // Going to another place of the same page is no reason to make it anew.
  if (shown !== location.pathname + location.search) show();
});
chooseTheme(document.getElementById("theme"));
show();
