"""The other side of ratchet.sessions.failpoints: arming named moments, seeing them reached, letting go."""

import time
from pathlib import Path

_LET_GO = 0.05
"""For held processes to see that they may go on."""


class Failpoints:
    """The failpoints of a stack that was started with RATCHET_FAILPOINTS set to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._armed: set[str] = set()

    def arm(self, name: str, action: str) -> None:
        """`action`: as ratchet.sessions.failpoints describes it."""
        draft = self._folder / f".{name}"
        draft.write_text(action)
        draft.replace(self._folder / name)
        self._armed.add(name)

    def release(self, name: str) -> None:
        """Let go of everybody who is held there; whoever comes later passes."""
        (self._folder / name).unlink(missing_ok=True)
        (self._folder / f"{name}.release").touch()

    def hits(self, name: str) -> list[int]:
        """Pids of the processes that acted there."""
        try:
            return [int(line) for line in (self._folder / f"{name}.hit").read_text().split()]
        except FileNotFoundError:
            return []

    def clear(self) -> None:
        """Let go of everybody, and forget everything."""
        for name in self._armed:
            self.release(name)
        time.sleep(_LET_GO)
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)
        self._armed.clear()
