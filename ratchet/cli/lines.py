"""A run in plain lines: for pipes, logs, and the end of a run."""

import re

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratchet.cli.following import Sight
from ratchet.cli.live import PHASE_STYLE, checkpoint_words, held_out, incident_words
from ratchet.cli.words import duration, known, mean, measured
from ratchet.spec.problems import first_line
from ratchet.spec.state import RunPhase
from ratchet.spec.views import RunSummary, RunView, StepView

_ATTEMPT = re.compile(r"attempt \d+")

_BEFORE_STEPS = (RunPhase.STARTING, RunPhase.QUEUED)

ENDS = 5
"""The reward is compared between at most so many first and last steps."""


def step_line(step: StepView, max_num_steps: int) -> str:
    """One step, one line."""
    parts = [
        f"step {step.step}/{max_num_steps}" + (again(step) if step.retrained else ""),
        f"reward {measured(step.reward_mean, '.3f')}",
        f"accuracy {measured(step.accuracy, '.3f')}",
        f"{step.tokens_per_second:,.0f} tokens/s",
        f"gradient {measured(step.metrics.get('grad_norm'), '.3g')}",
        f"logprob error {measured(step.metrics.get('logprob_error'), '.2g')}",
        duration((step.finished_at - step.started_at).total_seconds()),
    ]
    return "  ".join(parts)


def again(step: StepView) -> str:
    """That a step is no new progress, and how much of it had to be done again."""
    return f" again, {step.replayed_groups} of {step.num_groups} groups from the journal"


class Ticker:
    """Says what is new since the last sight, a line each."""

    def __init__(self) -> None:
        self._said: set[tuple[object, ...]] = set()
        self._phase: object = None
        self._away = False

    def lines(self, sight: Sight) -> list[str]:
        view = sight.view
        if sight.away_s:
            lines = [] if self._away else ["the API does not answer: trying again, the run goes on"]
            self._away = True
            return lines
        lines = ["the API answers again"] if self._away else []
        self._away = False
        if view.phase != self._phase and not view.phase.final:
            why = f": {view.fault.kind}: {first_line(view.fault.message)}" if view.fault else ""
            lines.append(f"{view.id} is {view.phase.value}{why}")
        self._phase = view.phase
        if view.phase in _BEFORE_STEPS:  # later, the steps themselves show that it moves
            lines += [line for line in view.doing if self._new("doing", _ATTEMPT.sub("", line))]
        for incident in view.incidents:
            if self._new("incident", incident.incarnation, incident.key):
                lines.append(f"incident {incident_words(incident).plain}")
        news: list[tuple[int, str]] = []
        for step in sight.steps:
            if self._new("step", step.incarnation, step.step):
                news.append((step.step, step_line(step, view.max_num_steps)))
        for seen in view.evaluations:
            if self._new("evaluation", seen.incarnation, seen.step):
                accuracy = measured(seen.accuracy, ".3f")
                line = f"held-out accuracy {accuracy} at step {seen.step} ({seen.num_problems} problems)"
                news.append((seen.step, line))
        saved = view.last_checkpoint
        if saved and self._new("checkpoint", saved.incarnation, saved.step):
            news.append((saved.step, f"checkpoint of step {saved.step}: {saved.path}"))
        return lines + [line for _, line in sorted(news, key=lambda item: item[0])]

    def _new(self, *key: object) -> bool:
        if key in self._said:
            return False
        self._said.add(key)
        return True


def outcome(sight: Sight) -> RenderableType:
    """How a run ended: did it learn, and where is the result."""
    view = sight.view
    took = f", {duration((view.ended_at - view.created_at).total_seconds())}" if view.ended_at else ""
    heading = Text.assemble(
        (view.id, "bold"),
        "  ",
        (view.phase.value, PHASE_STYLE[view.phase]),
        f" after {view.step} of {view.max_num_steps} steps{took}",
    )
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    if view.fault:
        rows.add_row("reason", Text(f"{view.fault.kind}: {view.fault.message}", "red"))
    if view.evaluations:
        rows.add_row("held-out accuracy", _gain(view))
    rewards = known(step.reward_mean for step in sight.steps)
    if rewards:
        rows.add_row("mean reward", _ends(rewards))
    if view.last_checkpoint:
        rows.add_row("checkpoint", checkpoint_words(view.last_checkpoint))
    if view.links.temporal:
        rows.add_row("temporal", view.links.temporal)
    return Group(heading, rows)


def _ends(rewards: list[float]) -> str:
    """From the first steps to the last, none of which counts as both."""
    if len(rewards) == 1:
        return f"{rewards[0]:.3f} (1 step)"
    count = min(ENDS, len(rewards) // 2)
    steps = f"{count} steps" if count > 1 else "step"
    return f"{mean(rewards[:count]):.3f} (first {steps}) → {mean(rewards[-count:]):.3f} (last {steps})"


def _gain(view: RunView) -> Text:
    before, after = view.evaluations[0], view.evaluations[-1]
    if before.step == after.step:
        accuracy = measured(before.accuracy, ".3f")
        return Text(f"{accuracy} at step {before.step} ({before.num_problems} problems)")
    if before.accuracy is None or after.accuracy is None:
        return held_out(view.evaluations)
    gain = after.accuracy - before.accuracy
    return Text.assemble(
        f"{before.accuracy:.3f} → {after.accuracy:.3f}  ",
        (f"{gain:+.3f}", "bold green" if gain > 0 else "bold red"),
        (f"  (steps {before.step} and {after.step}, {after.num_problems} problems)", "dim"),
    )


def run_table(runs: list[RunSummary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("run", "phase", "step", "started", ""):
        table.add_column(name, no_wrap=True)
    for run in runs:
        table.add_row(
            run.id,
            Text(run.phase.value, PHASE_STYLE[run.phase]),
            f"{run.step}/{run.max_num_steps}",
            f"{run.created_at.astimezone():%Y-%m-%d %H:%M}",
            _remark(run),
        )
    return table


def _remark(run: RunSummary) -> Text:
    """What a person should know of a run that does not simply go on."""
    if run.queue:
        return Text(run.queue.words, "dim")
    return Text(first_line(run.fault.message) if run.fault else "", "red")
