"""Two engines on one device: one of them is there, the other one waits with its state in the host's memory.

The turn is a lock of the kernel's on a file. A process that is killed in its turn loses it, and its memory on
the device with it, so there is nothing to be undone.
"""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError, Unavailable

LOOK_EVERY = 0.05


class Resident(Protocol):
    """An engine that can live on its device, or beside it."""

    def enter(self) -> None:
        """Move what it computes with to its device. There already: no effect."""
        ...

    def leave(self) -> None:
        """Move it to the host's memory, and give the device's back. Not between `begin` and `finish` of a
        step. Gone already: no effect."""
        ...


class Turns:
    """Lets a resident onto the device while nobody else is; with no lock, it is always there."""

    def __init__(self, resident: Resident, role: str, lock: Path | None) -> None:
        """Raises SpecError if it has to be a resident, and is none."""
        if lock and not (hasattr(resident, "enter") and hasattr(resident, "leave")):
            raise SpecError(
                f"placement.kind is colocated, but the {role} ({type(resident).__name__}) has no enter and "
                "leave: set placement.kind to split"
            )
        self._resident, self._role, self._lock = resident, role, lock
        self.moving_s = 0.0
        """Seconds spent moving in and out, in all."""

    @contextmanager
    def taken(self, within: float = deadlines.TURN) -> Generator[None]:
        """The resident's turn. Raises Unavailable, naming who has it, if it does not come."""
        if self._lock is None:
            yield
            return
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+") as file:
            self._wait(file.fileno(), within)
            os.ftruncate(file.fileno(), 0)
            file.write(f"{self._role} (pid {os.getpid()})")
            file.flush()
            self._move(self._resident.enter)
            try:
                yield
            finally:
                self._move(self._resident.leave)

    def _wait(self, descriptor: int, within: float) -> None:
        assert self._lock
        deadline = time.monotonic() + within
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the {self._role} waited {within:.0f} s for its turn on the device that it shares "
                        f"(placement.kind: colocated): {self._lock.read_text() or 'somebody'} has it",
                        role=self._role,
                    ) from None
                time.sleep(LOOK_EVERY)
            else:
                return

    def _move(self, move: Callable[[], None]) -> None:
        started = time.monotonic()
        move()
        self.moving_s += time.monotonic() - started
