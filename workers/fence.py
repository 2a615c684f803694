"""Until when a stack that holds a lease may act: in a file of its home, for every process of it to look at.

The supervisor writes it, with each renewal. What it has started reads it, on its own: no credentials, no
network, and no supervisor are needed to find that the time is over.
"""

import asyncio
import os
import struct
import time
from pathlib import Path
from typing import Self

FENCE_VARIABLE = "RATCHET_FENCE"
"""In what is started under a lease: its epoch, and the file, as EPOCH:PATH."""

LOOK_EVERY = 1.0

_CONTENT = struct.Struct("<qd")
"""Epoch, and the end of the time by the clock below. Overwritten in place: a full disk has room for it."""


class Fenced(OSError):
    """The stack may not act any more."""


class Fence:
    """The time of one epoch. Any process of the host may look."""

    def __init__(self, path: Path, epoch: int) -> None:
        self.path, self.epoch = path, epoch

    @classmethod
    def from_environment(cls) -> Self | None:
        """That of the stack which started this process; None if it needs no lease."""
        epoch, _, path = os.environ.get(FENCE_VARIABLE, "").partition(":")
        return cls(Path(path), int(epoch)) if path else None

    def environment(self) -> dict[str, str]:
        return {FENCE_VARIABLE: f"{self.epoch}:{self.path}"}

    def extend(self, until: float) -> None:
        """Let the stack act until then, by `clock`. Raises OSError."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, _CONTENT.pack(self.epoch, until), 0)
        finally:
            os.close(descriptor)

    def remaining(self) -> float:
        """Seconds in which the stack may act; none if the file is of another epoch, or cannot be read."""
        content = again = b""
        try:
            with self.path.open("rb", buffering=0) as file:
                while not content or content != again:  # it may be read while it is written
                    content, again = again, os.pread(file.fileno(), _CONTENT.size, 0)
                    if len(again) < _CONTENT.size:
                        return 0.0
        except OSError:
            return 0.0
        epoch, until = _CONTENT.unpack(again)
        return max(0.0, until - clock()) if epoch == self.epoch else 0.0

    def check(self) -> None:
        """Raises Fenced if the time is over."""
        if not self.remaining():
            raise Fenced(f"epoch {self.epoch} of this stack is over: another one may be the active one")

    async def over(self) -> None:
        """Returns when the time is over."""
        while remaining := self.remaining():
            await asyncio.sleep(min(remaining, LOOK_EVERY))


def clock() -> float:
    """Seconds that pass alike for all processes of this host, also while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
