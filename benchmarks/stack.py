"""A whole stack for one benchmark, in a folder of its own; nothing is left, however the benchmark ends."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ratchet.cli.client import Api
from ratchet.sessions.failpoints import VARIABLE as FAILPOINTS
from ratchet.spec import deadlines
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.views import RunView
from ratchet.telemetry.logs import FORMAT_VARIABLE

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_EVERY = 2.0
"""Seldom: every look asks the workflow, whose worker shares these cores with what is measured."""


class Stack:
    """A running stack: its folder, and a client of its API."""

    def __init__(self, home: Home, api: Api) -> None:
        self.home = home
        self.api = api

    def wait_end(self, run: str, within: float) -> RunView:
        """The run as it completed. Raises RatchetError if it ends otherwise, or not in time."""
        end = time.monotonic() + within
        while not (view := self.api.run(run)).phase.final:
            if time.monotonic() > end:
                raise RatchetError(f"run {run} did not end within {within:.0f} s; it is at step {view.step}")
            time.sleep(_LOOK_EVERY)
        require_sound(view)
        return view


def require_sound(view: RunView) -> None:
    """Raises RatchetError if the run failed."""
    if view.phase == "failed":
        raise RatchetError(f"run {view.id} failed: {view.fault.message if view.fault else 'no reason given'}")


@contextmanager
def embedded_stack(
    models: Path, environment: Mapping[str, str] | None = None, words: Sequence[str] = ()
) -> Iterator[Stack]:
    """`ratchet up` in a temporary RATCHET_HOME, down and deleted at the end. `models`: a folder of prepared
    base models to share, if there is one; `environment`: what its processes find there besides; `words`: more
    for its command line."""
    with _signals_as_exit():
        root = Path(tempfile.mkdtemp(prefix="ratchet-bench-"))
        if models.is_dir():
            (root / "models").symlink_to(models.resolve())
        try:
            up_within = deadlines.STACK_READY + 10.0
            _supervisor(root, "up", "--detach", *words, within=up_within, environment=environment)
            with Api(Home(root)) as api:
                yield Stack(Home(root), api)
        finally:
            for number in _SIGNALS:  # an impatient second Ctrl-C must not leave half a stack behind
                signal.signal(number, signal.SIG_IGN)
            try:
                _supervisor(root, "down", within=deadlines.STOP_STACK + deadlines.PROCESSES_GONE + 10.0)
            finally:
                shutil.rmtree(root, ignore_errors=True)


def _supervisor(root: Path, *words: str, within: float, environment: Mapping[str, str] | None = None) -> None:
    """Run one of its commands, out of the reach of the terminal's Ctrl-C. Raises RatchetError."""
    done = subprocess.run(
        [sys.executable, "-m", "workers.supervisor", *words],
        env={name: value for name, value in os.environ.items() if name != FAILPOINTS}
        | {HOME_VARIABLE: str(root), FORMAT_VARIABLE: "text"}
        | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=within,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        raise RatchetError(f"ratchet {' '.join(words)}: {done.stdout.strip()}")


@contextmanager
def _signals_as_exit() -> Iterator[None]:
    """Let every polite way to end a program unwind it."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
