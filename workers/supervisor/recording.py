"""What it takes to execute a running process again."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from workers.supervisor.processes import arguments, environment
from workers.supervisor.reaper import Reaper, Watched


@dataclass(frozen=True)
class Recording:
    """A process as it was started. Take it while the process lives."""

    argv: list[str]
    environment: dict[str, str]
    folder: Path
    output: Path
    errors: Path

    @classmethod
    def of(cls, pid: int) -> Self:
        """Raises OSError if it has ended."""
        links = Path("/proc") / str(pid)
        return cls(
            argv=arguments(pid),
            environment=environment(pid),
            folder=Path(os.readlink(links / "cwd")),
            output=_file_behind(links / "fd/1"),
            errors=_file_behind(links / "fd/2"),
        )

    def play(self, reaper: Reaper) -> Watched:
        """Start it once more, in a session of its own."""
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            return reaper.start(
                self.argv, environment=self.environment, output=output, errors=errors, folder=self.folder
            )


def _file_behind(descriptor: Path) -> Path:
    """Ray's processes that rotate their logs write into pipes of their own, made when they start."""
    target = Path(os.readlink(descriptor))
    return target if target.is_absolute() and target.is_file() else Path(os.devnull)
