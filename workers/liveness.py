"""A process shows its supervisor that its event loop turns: it touches a file once a second."""

import asyncio
import os
from pathlib import Path

ALIVE_VARIABLE = "RATCHET_ALIVE"
"""The file to touch; set by the supervisor for the children it watches."""

BEAT_EVERY = 1.0


async def beat(path: Path) -> None:
    """Touch `path` every second, until cancelled. Run it in the loop that does the work: a loop that is
    blocked, or a process that is stopped, then falls silent."""
    while True:
        touch(path)
        await asyncio.sleep(BEAT_EVERY)


async def beat_if_asked() -> None:
    """`beat` on the file that the supervisor named; nothing to do in a process started by hand."""
    if path := os.environ.get(ALIVE_VARIABLE):
        await beat(Path(path))


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
