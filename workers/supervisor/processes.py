"""Processes as /proc shows them: whose they are, and ending all of a set. Nothing is found by its name."""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.spec.faults import Unavailable
from ratchet.spec.home import HOME_VARIABLE, Home
from workers.supervisor.environment import HEAD_VARIABLE, STACK_VARIABLE

_PROC = Path("/proc")
_SCAN_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    session: int
    """Its session id, as in setsid(2): the pid of the session's first process."""
    stopped: bool = False
    """By SIGSTOP or the like: it is there, and does nothing."""


def running() -> Iterator[Process]:
    """Every process of this host that is more than a zombie."""
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and (process := look(int(entry))) is not None:
            yield process


def look(pid: int) -> Process | None:
    """The process, or None if it has ended (a zombie has)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command, in parentheses, may hold anything; after the last one: state, parent, group, session.
    state, parent, _, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else Process(pid, int(parent), int(session), stopped=state == "T")


def environment(pid: int) -> dict[str, str]:
    """Its environment at its start, as far as it is still there; empty if it belongs to somebody else."""
    pairs = (item.partition("=") for item in _strings(pid, "environ"))
    return {name: value for name, _, value in pairs if name}


def arguments(pid: int) -> list[str]:
    return _strings(pid, "cmdline")


def _strings(pid: int, file: str) -> list[str]:
    try:
        content = (_PROC / str(pid) / file).read_bytes()
    except OSError:
        return []
    return [os.fsdecode(part) for part in content.rstrip(b"\0").split(b"\0") if content.strip(b"\0")]


def holds_file_below(pid: int, folder: Path) -> bool:
    """Whether it has a file below `folder` open."""
    with contextlib.suppress(OSError):
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if Path(os.readlink(descriptor)).is_relative_to(folder):
                    return True
    return False


def of_stack(home: Home) -> list[Process]:
    """What runs for `home`, without this process and its ancestors.

    That is: what the supervisor started, and what that started (both carry STACK_VARIABLE); programs of ours
    that somebody started by hand for this home; and Ray's agents, which overwrite a part of their environment
    but keep their log files open.
    """
    root, own = str(home.root), ancestry()
    found: list[Process] = []
    for process in running():
        if process.pid in own:
            continue
        variables = environment(process.pid)
        if str(Home(variables.get(HOME_VARIABLE, root)).root) != root:
            ours = False
        elif variables.get(STACK_VARIABLE) == root:
            ours = True
        elif HOME_VARIABLE in variables and is_program_of_ours(arguments(process.pid)):
            ours = True
        else:
            ours = has_overwritten_environment(process.pid) and holds_file_below(process.pid, home.ray_temp)
        if ours:
            found.append(process)
    return found


def has_overwritten_environment(pid: int) -> bool:
    """Whether it put a long title (setproctitle) where its environment was: that then begins with zeros."""
    try:
        with (_PROC / str(pid) / "environ").open("rb") as file:
            return file.read(1) == b"\0"
    except OSError:
        return False


def of_head(sessions: set[int], head_ids: set[str]) -> list[Process]:
    """What runs for a Ray head: by session id or by mark, since neither finds all."""
    return [
        process
        for process in running()
        if process.session in sessions or environment(process.pid).get(HEAD_VARIABLE) in head_ids
    ]


def is_program_of_ours(argv: list[str]) -> bool:
    """Whether it is `python -m workers.something` or `python -m api`. A supervisor is not: its lock tells
    whose it is, and `status` or `down` in another terminal are nobody's business."""
    for flag, module in itertools.pairwise(argv):
        if flag == "-m":
            return module == "api" or (module.startswith("workers.") and module != "workers.supervisor")
    return False


def ancestry() -> set[int]:
    """This process and those above it."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        process = look(pid)
        pid = process.parent if process else 0
    return found


async def end_all(find: Callable[[], list[Process]], within: float) -> int:
    """SIGKILL what `find` finds until it finds nothing: how many. After `within` seconds: Unavailable."""
    killed: set[int] = set()
    deadline = time.monotonic() + within
    while processes := find():
        for process in processes:
            signal_to(process.pid, signal.SIGKILL)
            killed.add(process.pid)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in processes)
            raise Unavailable(
                f"processes {pids} do not end after SIGKILL: look at them with ps -o pid,stat,wchan,args"
            )
        await asyncio.sleep(_SCAN_PAUSE)
    return len(killed)


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send it, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_group(group: int, number: signal.Signals) -> None:
    """Send it to every process of the group, if any is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
