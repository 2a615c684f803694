"""What the supervisor says of itself: the lock that keeps it single, and state.json."""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Literal, Self

from pydantic import BaseModel, ConfigDict

from ratchet.spec.faults import Conflict
from ratchet.spec.home import Home
from ratchet.spec.stack import StackState


class PartStatus(BaseModel):
    """One part of the stack."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    state: str
    pid: int | None = None
    address: str | None = None
    starts: int = 0
    """How often it has been started; more than one: it died."""
    last_end: str | None = None
    """How and when it ended last, and what came of it, in words."""
    log: str | None = None


class LeaseView(BaseModel):
    """The lease of supervisors that stand by for each other, as one of them saw it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["active", "standby"]
    """What this supervisor is."""
    epoch: int
    """0: nobody has been active yet."""
    holder: str | None
    """Who is active."""
    confirmed_at: float
    """When this supervisor renewed it, or saw it, last; seconds since the epoch."""
    age_s: float
    """How long ago the holder had renewed it, then."""
    ttl_s: float
    """A holder that has been silent for this long is replaced."""
    took_over: str | None = None
    """How this supervisor came to be active, if another one had been before."""


class SupervisorState(StackState):
    """StackState, and what `status` shows."""

    started_at: float
    """Seconds since the epoch."""
    ready: bool = False
    """Whether everything had come up once."""
    max_sessions: int | None = None
    """So many runs may have a session at a time; None: any number."""
    parts: tuple[PartStatus, ...] = ()
    lease: LeaseView | None = None


class SupervisorLock:
    """Held as long as a supervisor runs; the kernel drops it with the process, however that ends."""

    def __init__(self, home: Home) -> None:
        """Take it. Raises Conflict, saying who holds it."""
        home.root.mkdir(parents=True, exist_ok=True)
        file = _path(home).open("a+")
        if not _locked(file):
            file.close()
            pid, since = _read(home)
            raise Conflict(
                f"a stack already runs from {home.root} (supervisor pid {pid}, since {since}): use it, "
                "stop it with `ratchet down`, or choose another RATCHET_HOME"
            )
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}))
        file.flush()
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


def supervisor_pid(home: Home) -> int | None:
    """The running supervisor of this home."""
    try:
        with _path(home).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BlockingIOError:
        return _read(home)[0]
    return None


def _locked(file: IO[str]) -> bool:
    for _ in range(3):  # `supervisor_pid` in another process may hold it for a moment
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def _path(home: Home) -> Path:
    return home.root / "supervisor.lock"


def _read(home: Home) -> tuple[int | None, str]:
    try:
        content = json.loads(_path(home).read_text())
        return int(content["pid"]), str(content["since"])
    except (OSError, ValueError, KeyError):
        return None, "a moment ago"
