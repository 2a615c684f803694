"""Where the victims are, whether another one has taken over, and the ills that are no process's death."""

import contextlib
import json
import resource
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from benchmarks.chaos.table import Victim
from ratchet.spec.faults import RatchetError
from ratchet.spec.home import Home
from workers.supervisor.processes import arguments, look, running
from workers.supervisor.state import PartStatus, SupervisorState

SESSION = 1
"""Runs of the harness open one session each."""

ILL_LASTS = {Victim.STORE_LOCKED: 5.0, Victim.STORE_READONLY: 5.0, Victim.DISK_FULL: 10.0}
"""Seconds. A store is away for longer than anybody waits for its lock (deadlines.STORE_BUSY), a disk is full
until a checkpoint was lost to it."""

PARTS = {
    Victim.API: "api",
    Victim.CONTROL_WORKER: "control-worker",
    Victim.TEMPORAL: "temporal",
    Victim.GCS: "ray-gcs",
    Victim.HEAD: "ray",
}
"""Those that a stack has without a session, by the names of `ratchet status`."""
_LOCKED_WITHIN = 10.0


def pid_of(home: Home, victim: Victim, run: str) -> int | None:
    """The process that plays a part at this moment; None between two lives."""
    match victim:
        case Victim.SESSION_WORKER:
            part = _part(home, _session(run))
        case Victim.SESSION_HOST:
            return _host(home, run)
        case (
            Victim.CONDUCTOR
            | Victim.TRAINER
            | Victim.GENERATOR
            | Victim.DATA_PLANE
            | Victim.TQ_CONTROLLER
            | Victim.TQ_STORAGE
        ):
            return _actor(home, victim, run)
        case _:
            part = _part(home, PARTS[victim])
    return part.pid if part and part.pid and look(part.pid) else None


def is_back(home: Home, victim: Victim, run: str, lost: int) -> bool:
    """Whether another process has taken over from the one that was lost, ready to work."""
    pid = pid_of(home, victim, run)
    if pid is None or pid == lost:
        return False
    if victim is Victim.SESSION_HOST:
        return f"session host {pid} is up" in session_log(home, run)
    name = _session(run) if victim is Victim.SESSION_WORKER else PARTS.get(victim)
    part = _part(home, name) if name else None
    return part is None or part.state == "ready"


def session_log(home: Home, run: str) -> str:
    """What the run's session worker and its hosts have said."""
    with contextlib.suppress(OSError):
        return (home.logs / f"{_session(run)}.log").read_text(errors="replace")
    return ""


@contextmanager
def ill(home: Home, victim: Victim, run: str) -> Generator[None, None, None]:
    """What is struck that is no process, for as long as the block lasts."""
    match victim:
        case Victim.STORE_LOCKED:
            with contextlib.closing(sqlite3.connect(home.root / "store.db", isolation_level=None)) as store:
                store.execute(f"PRAGMA busy_timeout = {_LOCKED_WITHIN * 1000:.0f}")
                store.execute("BEGIN EXCLUSIVE")
                yield
        case Victim.STORE_READONLY:
            with _no_writes(home, Victim.CONTROL_WORKER, run):
                yield
        case Victim.DISK_FULL:
            with _no_writes(home, Victim.TRAINER, run):
                yield
        case _:
            raise ValueError(f"{victim} is a process: it can be killed")


@contextmanager
def _no_writes(home: Home, victim: Victim, run: str) -> Generator[None, None, None]:
    """Let every write of a process into a file fail (EFBIG), as on a full disk or a read-only one.

    A limit of the process is what an ordinary user can set: to fill a disk or to mount one takes root, and
    file modes do not stop root, nor anybody who has the file open.
    """
    pid = pid_of(home, victim, run)
    if pid is None:
        raise RatchetError(f"there is no {victim} at the moment")
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _session(run: str) -> str:
    return f"session-{run}-{SESSION}"


def _part(home: Home, name: str) -> PartStatus | None:
    with contextlib.suppress(RatchetError):
        return next((part for part in SupervisorState.load(home).parts if part.name == name), None)
    return None


def _host(home: Home, run: str) -> int | None:
    worker = pid_of(home, Victim.SESSION_WORKER, run)
    hosts = [
        process.pid
        for process in running()
        if process.parent == worker and "workers.session_host" in arguments(process.pid)
    ]
    return hosts[0] if hosts else None


def _actor(home: Home, role: str, run: str) -> int | None:
    try:
        text = (home.session_folder(run, SESSION) / "actors" / f"{role}.json").read_text()
    except FileNotFoundError:
        return None
    pid = json.loads(text)["pid"]
    return pid if look(pid) else None
