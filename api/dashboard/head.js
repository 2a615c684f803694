// The top of a run's page: what it is, what it does at this moment, and the buttons that steer it.

import { h } from "./dom.js";
import { duration, median, number, percent, plural, seconds, size } from "./format.js";
import { rack } from "./rack.js";
import { command, crumbs, FINAL, nextCommands, state, when } from "./words.js";

const ETA_STEPS = 10;

export function heading(view) {
  const took = view.ended_at ? ` · took ${duration(seconds(view.created_at, view.ended_at))}` : "";
  const links = [
    view.links.temporal &&
      h("a", { href: view.links.temporal, target: "_blank", rel: "noopener" }, "Workflow in Temporal"),
    view.links.ray && h("a", { href: view.links.ray, target: "_blank", rel: "noopener" }, "Ray dashboard"),
  ].filter(Boolean);
  return [
    crumbs(h("span", { "aria-current": "page" }, view.name)),
    h("div", { class: "name" }, h("h1", { class: "id" }, view.id), state(view.phase)),
    h(
      "p",
      { class: "faint" },
      "Started ",
      when(view.created_at),
      took,
      view.incarnation > 1 && ` · incarnation ${view.incarnation}`,
      !FINAL.has(view.phase) &&
        !view.live &&
        " · its workflow does not answer just now: this is what is on record",
      links.map((link) => [" · ", link]),
    ),
  ];
}

/** Where it is, and why it is not further. */
export function now(view, metrics, marks, checkpoints) {
  const saves = checkpoints.filter((one) => one.on_path).map((one) => one.step);
  const per = secondsPerStep(metrics);
  const left = view.phase === "running" && per !== null ? per * (view.max_num_steps - view.step) : null;
  const commands = nextCommands(view);
  return h(
    "section",
    { class: "now", "aria-label": "Now" },
    rack(view.step, view.max_num_steps, marks, saves),
    h(
      "p",
      { class: "count" },
      h("b", {}, view.step.toLocaleString("en")),
      h("span", { class: "faint" }, ` of ${plural(view.max_num_steps, "step")}`),
      per !== null && h("span", {}, `${duration(per)} a step`),
      left !== null && h("span", {}, `about ${duration(left)} left`),
    ),
    view.fault &&
      h(
        "div",
        { class: FINAL.has(view.phase) ? "fault" : "fault passing", role: "group", "aria-label": "Fault" },
        h("b", {}, view.fault.kind),
        view.fault.role && h("span", { class: "faint" }, ` in ${view.fault.role}`),
        h("p", {}, view.fault.message),
      ),
    view.doing.length > 0 &&
      h(
        "ul",
        { class: "doing", "aria-label": "What it does now" },
        view.doing.map((line) => h("li", {}, line)),
      ),
    view.queue && h("p", {}, view.queue.words),
    view.stop_requested && h("p", { class: "faint" }, "A stop was asked for."),
    commands.length > 0 &&
      h("p", { class: "next" }, h("span", { class: "faint" }, "Next: "), commands.map(command)),
  );
}

/** The median time from one step's end to the next: evaluations and checkpoints included. */
function secondsPerStep(metrics) {
  const ends = (metrics.finished_at ?? []).slice(-ETA_STEPS - 1).map((time) => Date.parse(time) / 1000);
  const strides = metrics.steps.slice(-ETA_STEPS - 1);
  if (ends.length < 2) return null;
  return median(
    ends.slice(1).map((end, place) => (end - ends[place]) / (strides[place + 1] - strides[place])),
  );
}

export function facts(view, metrics) {
  const last = view.last_step;
  const held = view.evaluations.filter((one) => one.on_path !== false);
  const accuracy =
    held.length > 1
      ? [number(held[0].accuracy), " → ", h("b", {}, number(held.at(-1).accuracy))]
      : h("b", {}, number(held.at(-1)?.accuracy));
  const saved = view.last_checkpoint;
  const speed = last && last.rollout_s > 0 && !last.replayed_groups ? last.num_tokens / last.rollout_s : null;
  const all = [
    [
      "Reward",
      h("b", {}, number(view.reward_mean)),
      metrics.steps.length > 1 && `from ${number(metrics.series.reward_mean?.[0])}`,
    ],
    ["Held-out accuracy", accuracy, held.length > 0 && `at step ${held.at(-1).step}`],
    ["Effective time", h("b", {}, percent(view.ettr)), "ETTR"],
    ["Generation", h("b", {}, number(speed)), "tokens/s"],
    ["Logprob error", h("b", {}, number(last?.metrics.logprob_error)), "nats a token"],
    ["Last checkpoint", h("b", {}, saved ? `step ${saved.step}` : "none"), saved && size(saved.num_bytes)],
  ];
  return h(
    "dl",
    { class: "facts" },
    all.map(([name, value, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value, note && h("span", { class: "faint" }, ` ${note}`))),
    ),
  );
}

/** The buttons. They stay where they are, so that a keyboard does not lose its place. */
export function actions(act) {
  const buttons = {};
  const say = h("dialog", { class: "ask", "aria-label": "Stop the run?" });
  for (const [name, label] of [
    ["pause", "Pause"],
    ["resume", "Resume"],
    ["checkpoint", "Checkpoint"],
    ["stop", "Stop"],
  ]) {
    buttons[name] = h(
      "button",
      {
        type: "button",
        class: name === "stop" ? "careful" : null,
        on: { click: () => (name === "stop" ? say.showModal() : press(name)) },
      },
      label,
    );
  }
  say.append(
    h(
      "form",
      { method: "dialog", on: { submit: (event) => event.submitter?.value === "stop" && press("stop") } },
      h("h2", {}, "Stop this run?"),
      h("p", {}, "It ends early, with a checkpoint of its last finished step. It can be resumed from there."),
      h(
        "p",
        { class: "buttons" },
        h("button", { value: "keep", autofocus: true }, "Let it run"),
        h("button", { value: "stop", class: "careful" }, "Stop it"),
      ),
    ),
  );
  let pressed = false;
  async function press(name) {
    if (pressed) return;
    pressed = true;
    buttons[name].setAttribute("aria-busy", "true");
    try {
      await act(name);
    } finally {
      pressed = false;
      buttons[name].removeAttribute("aria-busy");
    }
  }
  function update(view) {
    const over = FINAL.has(view.phase);
    const paused = view.phase === "paused";
    buttons.pause.hidden = over || paused;
    buttons.resume.hidden = !(paused || view.phase === "stopped" || view.phase === "failed");
    buttons.checkpoint.hidden = over;
    buttons.stop.hidden = over;
    buttons.pause.disabled = buttons.stop.disabled = view.phase === "stopping";
  }
  return {
    element: h(
      "div",
      { class: "actions", role: "group", "aria-label": "Steer this run" },
      Object.values(buttons),
      say,
    ),
    update,
  };
}
