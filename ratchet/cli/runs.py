"""`ratchet run VERB`: launch, look at and steer runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.cli.failures import EPILOG, ExitCode, Failing

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ratchet.cli.client import Api
    from ratchet.spec.run_spec import RunSpec
    from ratchet.spec.views import RunView

runs = typer.Typer(
    cls=Failing,
    no_args_is_help=True,
    help="Launch, watch and steer runs.",
    epilog=EPILOG,
)

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML file, like those in recipes/.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, like grpo.max_num_steps=10."),
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as `ratchet run ls` shows it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]


@runs.command()
def launch(
    spec: SpecFile,
    overrides: Overrides = None,
    run_id: Annotated[str | None, typer.Option("--id", help="The run's id; else one is made up.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Watch the run, and end as it ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run. It lives in the stack: closing this terminal does not end it."""
    from ratchet.cli.client import Api

    read = _read_spec(spec, overrides)
    with Api() as api:
        view = api.launch(read.model_dump(mode="json", exclude_unset=True), run_id)
        if not as_json:
            typer.echo(f"launched {view.id}" + (f"  {view.links.temporal}" if view.links.temporal else ""))
        if wait:
            raise typer.Exit(_watch(api, view.id, as_json=as_json, json_steps=False))
    if as_json:
        return _print_json(view)
    _suggest(f"ratchet run watch {view.id}", f"ratchet run stop {view.id}")


@runs.command()
def validate(spec: SpecFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a spec without running it; nothing needs to be up."""
    from ratchet.preflight import check_runnable
    from ratchet.spec.problems import InvalidSpec

    try:
        checked = _read_spec(spec, overrides)
        check_runnable(checked)
    except InvalidSpec as error:
        if not as_json:
            raise
        _print({"valid": False, "errors": [problem.model_dump() for problem in error.problems]})
        raise typer.Exit(ExitCode.BAD_INPUT) from None
    if as_json:
        return _print({"valid": True, "spec": checked.model_dump(mode="json")})
    typer.echo(
        f"{spec} is valid: {checked.name} trains {checked.policy.model} on {checked.environment.name}, "
        f"{checked.grpo.max_num_steps} steps of {checked.samples_per_step} samples"
    )
    _suggest(f"ratchet run launch {spec} --wait")


@runs.command("ls")
def list_runs(
    phase: Annotated[str | None, typer.Option(help="Only runs in this phase, like running.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    from ratchet.cli.client import Api
    from ratchet.cli.lines import run_table
    from ratchet.cli.watching import put

    with Api() as api:
        found = api.runs(limit, phase)
    if as_json:
        return _print_json(found)
    if not found.runs:
        typer.echo(f"no runs that are {phase}" if phase else "no runs yet")
        return _suggest("ratchet run launch recipes/tiny-addition.yaml --wait")
    put(run_table(found.runs))
    if found.next_cursor:
        _suggest(f"ratchet run ls --limit {limit * 5}")
    _suggest(f"ratchet run show {found.runs[0].id}")


@runs.command()
def show(run: RunId, as_json: AsJson = False) -> None:
    """Show a run as it is now."""
    from ratchet.cli.client import Api
    from ratchet.cli.following import Sight
    from ratchet.cli.live import live_view
    from ratchet.cli.watching import put

    with Api() as api:
        view = api.run(run)
        if as_json:
            return _print_json(view)
        sight = Sight(view, api.steps(run))
    put(live_view(sight, following=False))
    _suggest_for(view)


@runs.command()
def watch(run: RunId, as_json: AsJson = False) -> None:
    """Watch a run until it ends. Ctrl-C only detaches. With --json: a line per step, then the run."""
    from ratchet.cli.client import Api

    with Api() as api:
        raise typer.Exit(_watch(api, run, as_json=as_json, json_steps=True))


@runs.command()
def pause(run: RunId, as_json: AsJson = False) -> None:
    """Pause a run after its current step. Weights stay loaded."""
    _act(run, "pause", as_json)


@runs.command()
def resume(run: RunId, as_json: AsJson = False) -> None:
    """Go on with a run that is paused, or that ended: from its newest checkpoint, under the same id."""
    _act(run, "resume", as_json)


@runs.command()
def stop(
    run: RunId,
    wait: Annotated[bool, typer.Option("--wait", help="Come back when it has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a run early, with a checkpoint of the last finished step."""
    if not wait:
        return _act(run, "stop", as_json)
    from ratchet.cli.client import Api

    with Api() as api:
        api.act(run, "stop")
        raise typer.Exit(_watch(api, run, as_json=as_json, json_steps=False))


@runs.command()
def checkpoint(run: RunId, as_json: AsJson = False) -> None:
    """Save a run after its current step, whatever its spec says."""
    _act(run, "checkpoint", as_json)


@runs.command()
def extend(
    run: RunId,
    steps: Annotated[int, typer.Option("--steps", min=1, help="The new last step.")],
    as_json: AsJson = False,
) -> None:
    """Train to another last step. A run that has ended is resumed with it."""
    _act(run, "extend", as_json, max_num_steps=steps)


@runs.command("set")
def set_values(
    run: RunId,
    values: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Like policy.optimizer.lr=1e-6.")
    ],
    as_json: AsJson = False,
) -> None:
    """Give hyperparameters of a run new values, from its next step on."""
    _act(run, "hyperparameters", as_json, values=_numbers(values))


@runs.command()
def fork(
    run: RunId,
    at: Annotated[int, typer.Option("--at", min=1, help="The step whose checkpoint it starts from.")],
    overrides: Overrides = None,
    run_id: Annotated[str | None, typer.Option("--id", "--run-id", help="The new run's id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a new run from a checkpoint of another one: weights, optimizer and data go on from there."""
    from ratchet.cli.client import Api

    body = {"at": at, "overrides": overrides or []} | ({"run_id": run_id} if run_id else {})
    with Api() as api:
        view = api.act(run, "fork", **body)
    if as_json:
        return _print_json(view)
    link = f"  {view.links.temporal}" if view.links.temporal else ""
    typer.echo(f"{view.id} goes on from step {at} of {run}{link}")
    _suggest(f"ratchet run watch {view.id}", f"ratchet run stop {view.id}")


_COMING = {
    "pause": ": it pauses after the step it is in",
    "stop": ": it stops, with a checkpoint of the last finished step",
    "checkpoint": ": it saves the step that it is in",
    "hyperparameters": ": the new values hold from its next step on",
}
"""What was asked for and takes its time."""


def _act(run: str, action: str, as_json: bool, **body: Any) -> None:
    from ratchet.cli.client import Api

    with Api() as api:
        view = api.act(run, action, **body)
    if as_json:
        return _print_json(view)
    coming = "" if view.phase.final or view.phase in ("paused", "queued") else _COMING.get(action, "")
    typer.echo(f"{view.id} is {view.phase.value} at step {view.step} of {view.max_num_steps}{coming}")
    _suggest_for(view)


def _numbers(assignments: list[str]) -> dict[str, float]:
    """From `a.b=1e-5` texts. Raises InvalidSpec with every one that is none."""
    from ratchet.spec.problems import InvalidSpec, SpecProblem

    values: dict[str, float] = {}
    problems: list[SpecProblem] = []
    for text in assignments:
        key, separator, value = text.partition("=")
        try:
            values[key.strip()] = float(value)
        except ValueError:
            found = repr(value) if separator else "no key=value"
            problems.append(SpecProblem(key=key, found=found, allowed="a number, like 1e-6"))
    if problems:
        raise InvalidSpec(problems)
    return values


def _read_spec(path: Path, overrides: list[str] | None) -> "RunSpec":
    """The spec, its types and bounds checked. Raises InvalidSpec."""
    from ratchet.models.names import is_folder
    from ratchet.spec.loading import load_spec

    spec = load_spec(path, overrides or [])
    if is_folder(spec.policy.model):
        # The stack runs in another directory than the person who types.
        folder = Path(spec.policy.model).expanduser().resolve()
        spec = spec.model_copy(update={"policy": spec.policy.model_copy(update={"model": str(folder)})})
    return spec


def _watch(api: "Api", run: str, *, as_json: bool, json_steps: bool) -> ExitCode:
    from ratchet.cli.watching import watch_json, watch_live

    sight = watch_json(api, run, steps=json_steps) if as_json else watch_live(api, run)
    if sight is None:  # detached
        if not as_json:
            _suggest(f"ratchet run watch {run}", f"ratchet run stop {run}", "ratchet down")
        return ExitCode.OK
    if not as_json:
        _suggest_for(sight.view)
    return ExitCode.RUN_FAILED if sight.view.phase == "failed" else ExitCode.OK


def _suggest_for(view: "RunView") -> None:
    if view.phase == "failed":
        _suggest(f"ratchet run resume {view.id}", "ratchet logs", "ratchet status")
    elif view.phase == "stopped":
        _suggest(f"ratchet run resume {view.id}", "ratchet run ls", "ratchet down")
    elif view.phase.final:
        _suggest(f"ratchet run show {view.id}", "ratchet run ls", "ratchet down")
    elif view.phase == "stalled":
        _suggest("ratchet status", "ratchet logs", f"ratchet run stop {view.id}")
    elif view.phase == "stopping":
        _suggest(f"ratchet run watch {view.id}")
    elif view.phase == "queued":
        _suggest(f"ratchet run watch {view.id}", "ratchet run ls", f"ratchet run stop {view.id}")
    elif view.phase == "paused":
        _suggest(f"ratchet run resume {view.id}", f"ratchet run stop {view.id}")
    else:
        _suggest(
            f"ratchet run watch {view.id}", f"ratchet run pause {view.id}", f"ratchet run stop {view.id}"
        )


def _suggest(*commands: str) -> None:
    """The next useful commands, on stderr so that stdout stays what was asked for."""
    for lead, command in zip(["next:", *["     "] * len(commands)], commands, strict=False):
        typer.echo(typer.style(f"{lead} {command}", dim=True), err=True)


def _print_json(view: "BaseModel") -> None:
    typer.echo(view.model_dump_json())


def _print(data: dict[str, object]) -> None:
    typer.echo(json.dumps(data))
