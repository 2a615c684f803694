"""The live view of a run: what people look at for hours."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ratchet.cli.following import Sight
from ratchet.cli.words import duration, known, measured, size, sparkline
from ratchet.spec.state import RunPhase
from ratchet.spec.views import CheckpointView, EvaluationView, IncidentView, RunView, StepView

CURVE = 40

PHASE_STYLE = {
    RunPhase.STARTING: "cyan",
    RunPhase.QUEUED: "cyan",
    RunPhase.RUNNING: "bold green",
    RunPhase.RECOVERING: "bold yellow",
    RunPhase.STALLED: "bold red",
    RunPhase.PAUSED: "bold yellow",
    RunPhase.STOPPING: "yellow",
    RunPhase.COMPLETED: "bold green",
    RunPhase.STOPPED: "bold yellow",
    RunPhase.FAILED: "bold red",
}


def live_view(sight: Sight, *, following: bool = True) -> RenderableType:
    """One screen: where it is, what it does, whether it learns, whether the numbers are sound."""
    view, steps = sight.view, sight.steps
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("step", _progress(sight))
    if view.fault or not view.phase.final:
        rows.add_row("now", _now(sight))
    if steps:
        last = steps[-1]
        rows.add_row("reward", _curve(known(step.reward_mean for step in steps), "green"))
        rows.add_row("accuracy", _curve(known(step.accuracy for step in steps), "cyan"))
        rows.add_row("speed", _speed(last))
        rows.add_row("gradient", _gradient(last))
        rows.add_row("logprob error", _logprob_error(last))
    if view.evaluations:
        rows.add_row("held-out", held_out(view.evaluations))
    if view.last_checkpoint:
        rows.add_row("checkpoint", checkpoint_words(view.last_checkpoint))
    for number, incident in enumerate(view.incidents):
        rows.add_row("incidents" if number == 0 else "", incident_words(incident))
    if view.links.temporal:
        rows.add_row("temporal", Text(view.links.temporal, style=f"link {view.links.temporal}"))
    if not following or view.phase.final:
        return Group(_heading(view), rows)
    return Group(_heading(view), rows, Text("Ctrl-C detaches; the run goes on", "dim italic"))


def _heading(view: RunView) -> Text:
    heading = Text.assemble((view.id, "bold"), "  ", (view.phase.value, PHASE_STYLE[view.phase]))
    if view.ended_at:
        heading.append(f"  {duration((view.ended_at - view.created_at).total_seconds())}", "dim")
    if view.incarnation > 1:
        heading.append(f"  incarnation {view.incarnation}", "yellow")
    return heading


def _progress(sight: Sight) -> RenderableType:
    view = sight.view
    bar = ProgressBar(total=view.max_num_steps, completed=view.step, width=CURVE)
    words = Text(f"{view.step}/{view.max_num_steps}", "bold")
    if sight.seconds_per_step is not None:
        words.append(f"  {duration(sight.seconds_per_step)} a step", "dim")
    if sight.remaining_s:
        words.append(f"  {duration(sight.remaining_s)} left")
    grid = Table.grid(padding=(0, 2))
    grid.add_row(bar, words)
    return grid


def _now(sight: Sight) -> Text:
    view = sight.view
    if sight.away_s:
        return Text(f"the API has not answered for {duration(sight.away_s)}: trying again", "yellow")
    if view.fault:
        troubled = Text(f"{view.fault.kind}: {view.fault.message}", "red" if view.phase.final else "yellow")
        return Text("\n").join([troubled, *map(Text, view.doing)])
    if view.phase is RunPhase.STALLED and view.incidents:
        silent = view.incidents[-1]
        return Text("\n").join(
            [Text(f"{silent.lost} is silent: {silent.cause}", "red"), *map(Text, view.doing)]
        )
    if view.phase is RunPhase.PAUSED:
        return Text(f"paused: ratchet run resume {view.id}", "yellow")
    if view.doing:
        return Text("\n".join(view.doing))
    return Text("between operations" if view.live else "waiting for the workflow to answer", "dim")


def _curve(values: list[float], style: str) -> Text:
    if not values:
        return Text("unknown")
    words = Text.assemble((sparkline(values, CURVE), style))
    words.append(f"  {values[-1]:.3f}", "bold")
    if len(values) > 1:
        words.append(f"  from {values[0]:.3f}", "dim")
    return words


def _speed(step: StepView) -> Text:
    parts = (
        f"rollout {duration(step.rollout_s)}, train {duration(step.train_s)}, refit {duration(step.refit_s)}"
    )
    return Text.assemble(f"{step.tokens_per_second:,.0f} tokens/s", (f"  {parts}", "dim"))


def _gradient(step: StepView) -> Text:
    norm = measured(step.metrics.get("grad_norm"), ".3g")
    idle = f"{step.zero_advantage_groups} of {step.num_groups} groups taught nothing"
    return Text.assemble(f"norm {norm}", (f"  {idle}", "dim"))


def _logprob_error(step: StepView) -> Text:
    error = measured(step.metrics.get("logprob_error"), ".2g")
    return Text.assemble(f"{error} nats a token", ("  generation against training", "dim"))


def held_out(evaluations: list[EvaluationView]) -> Text:
    """`0.420 at step 0 → 0.710 at step 40  (256 problems)`; the first and the last two of many."""
    shown = evaluations if len(evaluations) <= 3 else [evaluations[0], *evaluations[-2:]]
    words = Text(" → ").join(
        Text.assemble((measured(seen.accuracy, ".3f"), "bold"), f" at step {seen.step}") for seen in shown
    )
    words.append(f"  ({evaluations[-1].num_problems} problems)", "dim")
    return words


def incident_words(incident: IncidentView) -> Text:
    """`12:03:11  trainer  its process is gone → restored step 4 as incarnation 2, 21 s`."""
    took = f", {duration(incident.seconds)}" if incident.seconds is not None else ""
    return Text.assemble(
        (f"{incident.at.astimezone():%H:%M:%S}", "dim"),
        (f"  {incident.lost}  ", "yellow"),
        incident.cause,
        (f" → {incident.done}{took}", "dim"),
    )


def checkpoint_words(checkpoint: CheckpointView) -> Text:
    return Text.assemble(
        f"step {checkpoint.step}", (f"  {size(checkpoint.num_bytes)}  {checkpoint.path}", "dim")
    )
