// Server-sent events over fetch, which can carry a token where EventSource cannot. A stream that breaks goes on
// where it was (Last-Event-ID), so that nothing is missed and nothing comes twice.

import { answered, ask, Away, away, whole } from "./api.js";

/** The API says something at least every ten seconds; who hears nothing for so long (ms) comes back. */
const SILENT = 25000;
const PATIENCE = [1, 2, 4, 8, 15];
const pulse = document.getElementById("pulse");

/** The newest event there is: what is asked for after this call, and the events above it, miss nothing. */
export async function newest(signal) {
  const answer = await ask("/v1/events?seconds=0", { signal, headers: { Accept: "text/event-stream" } });
  const told = /^id: (\d+)$/m.exec(await whole(answer, signal));
  return told ? Number(told[1]) : 0;
}

/** Hand over every event above `after` until the signal ends it. In a tab that nobody sees, it rests. */
export async function follow(path, after, signal, onEvent) {
  let last = after;
  for (let tries = 0; !signal.aborted;) {
    await visible(signal);
    if (signal.aborted) break;
    const here = new AbortController();
    const end = () => here.abort();
    const rest = () => document.hidden && here.abort();
    signal.addEventListener("abort", end);
    document.addEventListener("visibilitychange", rest);
    try {
      const headers = { Accept: "text/event-stream", "Last-Event-ID": String(last) };
      const answer = await ask(path, { signal: here.signal, headers });
      answered();
      show("live", "Live");
      tries = 0;
      for await (const event of events(answer.body, here)) {
        last = event.id;
        if (event.data) onEvent(JSON.parse(event.data));
      }
      await pause(1000, signal);
    } catch (error) {
      if (signal.aborted) break;
      if (!here.signal.aborted && !(error instanceof Away || error instanceof TypeError)) {
        show("", "");
        throw error;
      }
      if (document.hidden) {
        show("rests", "Paused while hidden");
      } else {
        show("away", "Reconnecting");
        const message = error instanceof Away ? error.message : "The API does not answer.";
        await away(message, PATIENCE[Math.min(tries, PATIENCE.length - 1)], signal);
        tries += 1;
      }
    } finally {
      signal.removeEventListener("abort", end);
      document.removeEventListener("visibilitychange", rest);
    }
  }
  show("", "");
}

async function* events(body, controller) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const silence = setTimeout(() => controller.abort(), SILENT);
    const { value, done } = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = parse(block);
      if (event.id !== undefined) yield event;
    }
  }
}

function parse(block) {
  const event = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    event[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
  }
  if (event.id !== undefined) event.id = Number(event.id);
  return event;
}

function show(state, words) {
  pulse.className = `pulse ${state}`;
  pulse.textContent = words;
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

function visible(signal) {
  if (!document.hidden || signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}
