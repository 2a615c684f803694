"""Collects every ended process at once, and starts the ones it will collect."""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from workers.supervisor.processes import look, signal_group

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Watched:
    """A process whose end will be known."""

    pid: int
    ended: asyncio.Future[int]
    """Its exit code, or minus the number of the signal that ended it."""

    @property
    def alive(self) -> bool:
        return not self.ended.done()


class Reaper:
    """Waits for all children of this process, orphaned grandchildren included.

    Ray's processes are orphans as soon as their launcher ends. They become children of the supervisor, so
    their end is known at once, and none stays a zombie: Ray's workers look for the raylet by its pid and
    would take a zombie for a living one. Nothing else in this process may wait for children, as
    `subprocess.run` does.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called before anything is started, and raises OSError if that must not be."""
        self._check = check
        self._watched: dict[int, Watched] = {}
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def install(self) -> None:
        """Begin; call it once, from the running event loop."""
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._collect)

    def start(
        self,
        argv: Sequence[str],
        *,
        environment: dict[str, str],
        output: IO[bytes],
        errors: IO[bytes] | None = None,
        folder: Path | None = None,
        keep: Sequence[int] = (),
    ) -> Watched:
        """Start a program in a session of its own, with no terminal. `keep`: descriptors it inherits. Raises
        OSError."""
        self._check()
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors or subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(keep),
        )
        self._started[process.pid] = process
        return self.watch(process.pid)

    def watch(self, pid: int) -> Watched:
        """Know the end of a child, or of a process that becomes one."""
        watched = self._watched.setdefault(pid, Watched(pid, asyncio.get_running_loop().create_future()))
        if pid not in self._started and look(pid) is None:
            self._ended(pid, 0)
        return watched

    async def run(
        self, argv: Sequence[str], *, environment: dict[str, str], output: IO[bytes], within: float
    ) -> int:
        """Run a program to its end: its exit code. After `within` seconds it is killed: Unavailable."""
        program = self.start(argv, environment=environment, output=output)
        try:
            return await asyncio.wait_for(asyncio.shield(program.ended), within)
        except TimeoutError:
            raise Unavailable(f"`{' '.join(argv[1:4])}` did not end within {within:.0f} s") from None
        finally:
            signal_group(program.pid, signal.SIGKILL)
            await asyncio.wait([program.ended], timeout=deadlines.PROCESSES_GONE)

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        if process := self._started.pop(pid, None):
            process.returncode = code  # so that Popen never waits for it: by then the pid may be another's
        watched = self._watched.pop(pid, None)
        if watched and not watched.ended.done():
            watched.ended.set_result(code)
