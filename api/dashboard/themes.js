// The button that chooses between the system's theme, the light and the dark one.

import { h } from "./dom.js";

const KEY = "ratchet-theme";
const THEMES = ["system", "light", "dark"];

export function chooseTheme(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => root.dataset.theme ?? "system";
  const changed = () => {
    button.replaceChildren(h("span", { class: "wide" }, "Theme: "), chosen());
    button.setAttribute("aria-label", `Theme: ${chosen()}`);
    document.dispatchEvent(new Event("ratchet:theme"));
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // It is kept as long as this page, then.
    }
    changed();
  });
  system.addEventListener("change", changed);
  changed();
}
