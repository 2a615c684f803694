"""`ratchet rebuild WHAT RUN`: have again what can be had from histories, manifests and journal."""

import typer

from ratchet.cli.failures import EPILOG, ExitCode, Failing
from ratchet.cli.runs import AsJson, RunId

rebuild = typer.Typer(
    cls=Failing,
    no_args_is_help=True,
    help="Rebuild what was lost: the store, from histories and manifests.",
    epilog=EPILOG,
)


@rebuild.command()
def store(run: RunId, as_json: AsJson = False) -> None:
    """Write a run's rows again, also if the store has forgotten the run. Rows that are there stay."""
    _rebuild("store", run, as_json)


@rebuild.command("data-plane")
def data_plane(run: RunId, as_json: AsJson = False) -> None:
    """Whether the journal holds what the data plane is refilled with. The run refills it by itself."""
    _rebuild("data-plane", run, as_json)


@rebuild.command()
def buffer(run: RunId, as_json: AsJson = False) -> None:
    """Whether the journal holds what the replay buffer is refilled with. The run refills it by itself."""
    _rebuild("buffer", run, as_json)


def _rebuild(what: str, run: str, as_json: bool) -> None:
    from ratchet.cli.client import Api

    with Api() as api:
        report = api.rebuild(run, what)
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        counts = ", ".join(f"{count} {kind}" for kind, count in report.found.items())
        typer.echo(f"{what} of {run}: {'complete' if report.complete else 'incomplete'} ({counts})")
        for remark in report.remarks:
            typer.echo(f"  {remark}")
    if not report.complete:
        raise typer.Exit(ExitCode.RUN_FAILED)
