// Talking to the API: its token, its problems, and its absence.

import { h } from "./dom.js";

const TOKEN = "ratchet-token";
const PATIENCE = [1, 2, 4, 8, 15];
/** Answers that say: not now. */
const AWAY = new Set([429, 502, 503, 504]);

/** An answer of the API that says no; `detail` is one line with the fix. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
    this.detail = detail;
  }
}

/** Nobody answers, or something that the API needs does not. */
export class Away extends Error {}

export async function get(path, signal) {
  return exact(await whole(await ask(path, { signal }), signal));
}

export async function post(path) {
  return exact(await whole(await ask(path, { method: "POST" })));
}

/** An answer's text. It breaks off where the API does. */
export async function whole(answer, signal) {
  try {
    return await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Away("The API broke off its answer.");
  }
}

/** JSON whose whole numbers stay what they are: those that JavaScript cannot hold, like seeds, become texts. */
function exact(text) {
  return JSON.parse(text, (_, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? context.source : value,
  );
}

/** An answer that is fine. Raises Problem or Away; asks the person for a token where one is needed. */
export async function ask(path, options = {}) {
  for (;;) {
    const token = read();
    const headers = { Accept: "application/json", ...options.headers };
    if (token) headers.Authorization = `Bearer ${token}`;
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, credentials: "omit" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Away("The API does not answer.");
    }
    if (answer.ok) return answer;
    if (answer.status === 401) {
      if (token && read() === token) forget();
      await askForToken(token ? "This token is not known here, or was revoked." : "");
      continue;
    }
    const told = await answer.json().catch(() => ({}));
    if (AWAY.has(answer.status)) throw new Away(told.detail ?? `The API answers ${answer.status}.`);
    throw new Problem(answer.status, told.title ?? answer.statusText, told.detail ?? answer.statusText);
  }
}

/** What `ask` gives, however long the API is away: meanwhile the banner says so. */
export async function patiently(signal, work) {
  for (let tries = 0; ; tries += 1) {
    try {
      const result = await work();
      answered();
      return result;
    } catch (error) {
      if (!(error instanceof Away) || signal.aborted) throw error;
      await away(error.message, PATIENCE[Math.min(tries, PATIENCE.length - 1)], signal);
    }
  }
}

// --- the banner

const banner = document.getElementById("banner");

export function answered() {
  banner.hidden = true;
}

let waiting = null;

/** Say that the API is away and wait for so many seconds, or until the person does not want to. Whoever else
 * finds it away meanwhile waits for the same moment. */
export function away(message, wait, signal) {
  waiting ??= countdown(message, wait).finally(() => {
    waiting = null;
  });
  const left = new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  return Promise.race([waiting, left]);
}

function countdown(message, wait) {
  return new Promise((resolve) => {
    let left = wait;
    const words = h("span", {});
    const say = () => {
      words.textContent = `${message} Runs go on without it; trying again in ${left} s.`;
    };
    const end = () => {
      clearInterval(timer);
      resolve();
    };
    const timer = setInterval(() => {
      left -= 1;
      if (left > 0) say();
      else end();
    }, 1000);
    say();
    banner.replaceChildren(
      words,
      h("button", { type: "button", class: "quiet", on: { click: end } }, "Try now"),
    );
    banner.hidden = false;
  });
}

// --- the token: kept as long as this tab

function read() {
  return sessionStorage.getItem(TOKEN);
}

function forget() {
  sessionStorage.removeItem(TOKEN);
}

let asking = null;

/** Ask once, however many requests need it. */
function askForToken(reason) {
  asking ??= dialog(reason).finally(() => {
    asking = null;
  });
  return asking;
}

function dialog(reason) {
  return new Promise((resolve) => {
    const field = h("input", {
      id: "token",
      type: "password",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
      "aria-describedby": "token-help",
    });
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, "This API needs a token"),
      reason && h("p", { class: "wrong", role: "alert" }, reason),
      h("label", { for: "token" }, "Bearer token"),
      field,
      h(
        "p",
        { id: "token-help", class: "faint" },
        "Kept in this tab only. An admin makes one with ",
        h("code", {}, "ratchet token create NAME --role viewer"),
        ".",
      ),
      h("button", { type: "submit", class: "main" }, "Continue"),
    );
    const box = h("dialog", { class: "ask", "aria-label": "Token" }, form);
    box.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", () => {
      sessionStorage.setItem(TOKEN, field.value.trim());
      box.remove();
      resolve();
    });
    document.body.append(box);
    box.showModal();
    field.focus();
  });
}

// --- words that pass

/** Say something for a few seconds, also to who cannot see it. */
export function tell(message, bad = false) {
  const toast = h("p", { class: bad ? "toast bad" : "toast" }, message);
  document.getElementById("toasts").append(toast);
  setTimeout(() => toast.remove(), bad ? 12000 : 5000);
}
