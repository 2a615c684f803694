"""`watch`: a live screen on a terminal, plain lines elsewhere, JSON for programs. Ctrl-C only detaches."""

import io
import sys

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from ratchet.cli.following import RunReader, Sight, follow
from ratchet.cli.lines import Ticker, outcome
from ratchet.cli.live import live_view

UNWRAPPED = 10_000
"""Columns of a pipe: whoever reads it looks for whole lines."""


def put(what: RenderableType) -> None:
    """Print it: as wide as the terminal, or, into a pipe, unwrapped and without blanks at the ends."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console.print(what)
    unwrapped = Console(highlight=False, file=io.StringIO(), width=UNWRAPPED)
    with unwrapped.capture() as captured:
        unwrapped.print(what)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def watch_live(api: RunReader, run: str) -> Sight | None:
    """Show a run to its end and return the last sight; None if the person detached."""
    console = Console(highlight=False)
    try:
        sight = _screen(api, run, console) if console.is_terminal else _plain(api, run)
    except KeyboardInterrupt:
        typer.echo(f"detached: {run} goes on without you", err=True)
        return None
    put(outcome(sight))
    return sight


def watch_json(api: RunReader, run: str, *, steps: bool) -> Sight | None:
    """Print every step as a line of JSON if `steps`, and the ended run as the last one."""
    said: set[tuple[int, int]] = set()
    sight = None
    try:
        for sight in follow(api, run):
            for step in sight.steps if steps else ():
                if (step.incarnation, step.step) not in said:
                    said.add((step.incarnation, step.step))
                    sys.stdout.write(step.model_dump_json() + "\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return None
    if sight is not None:
        sys.stdout.write(sight.view.model_dump_json() + "\n")
    return sight


def _screen(api: RunReader, run: str, console: Console) -> Sight:
    sights = follow(api, run)
    sight = next(sights)
    # transient: the outcome takes the place of the last screen.
    with Live(live_view(sight), console=console, refresh_per_second=4, transient=True) as live:
        for sight in sights:
            live.update(live_view(sight))
    return sight


def _plain(api: RunReader, run: str) -> Sight:
    ticker = Ticker()
    sight = None
    for sight in follow(api, run):
        for line in ticker.lines(sight):
            typer.echo(line)
    assert sight is not None  # follow yields at least once
    return sight
