"""Names of shared-memory segments: who owns one can be read off it. No torch, so anybody can clean up."""

import secrets
from pathlib import Path

from ratchet.spec.home import Home

SHARED_MEMORY = Path("/dev/shm")
_TAIL = 8


def segment_prefix(home: Home, owner: str) -> str:
    """The prefix of an actor's segments; `owner` is the actor's name."""
    return f"{home.tag}-{owner}"


def new_segment(prefix: str) -> Path:
    """A path for one more segment, which does not exist yet."""
    return SHARED_MEMORY / f"ratchet-{prefix}-{secrets.token_hex(_TAIL // 2)}"


def sweep(prefix: str) -> list[str]:
    """Remove the segments that a dead owner left; returns their names, sorted.

    Exactly that owner's: a prefix that goes on at a dash is somebody else's.
    """
    leftovers = sorted(SHARED_MEMORY.glob(f"ratchet-{prefix}-{'[0-9a-f]' * _TAIL}"))
    for path in leftovers:
        path.unlink(missing_ok=True)
    return [path.name for path in leftovers]
