// Before the first paint, and no module for that reason: the theme that was chosen here, if one was.
(() => {
  "use strict";
  let chosen = null;
  try {
    chosen = localStorage.getItem("ratchet-theme");
  } catch {
    // Storage may be turned off: then the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
