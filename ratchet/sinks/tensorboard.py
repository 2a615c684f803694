"""TensorBoard: one event file a run. The position says how long the file was; what is beyond it is cut
off."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ratchet.sinks import events
from ratchet.sinks.follow import SinkState
from ratchet.sinks.news import News, Point, Restart

FILE = "events.out.tfevents.0000000001.ratchet"
"""Always the same: a sink that has lost its position writes it anew, and leaves no second file beside it."""


class TensorboardSink:
    takes_back = True
    tells: tuple[type[News], ...] = (Point, Restart)
    at_once = 500
    lasts_after_close = False
    given_up = 0

    def __init__(self, folder: Path) -> None:
        """`folder`: of this run alone."""
        self._path = folder / FILE
        self._file: BinaryIO | None = None

    def open(self, state: SinkState) -> bool:
        self._let_go()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = int(str(state.get("size", 0)))
        file = self._path.open("r+b" if self._path.exists() else "w+b")
        is_there = file.seek(0, os.SEEK_END) >= size
        file.truncate(size if is_there else 0)
        file.seek(0, os.SEEK_END)
        self._file = file
        return is_there

    def write(self, news: Sequence[News]) -> None:
        file = self._opened()
        for item in news:
            if file.tell() == 0:
                file.write(events.version(item.at))
            match item:
                case Point():
                    file.write(events.scalars(item.at, item.step, item.values))
                case Restart() if item.incarnation > 1:
                    file.write(events.start_at(item.at, item.step + 1))
                case _:
                    pass

    def commit(self) -> SinkState:
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        return {"size": file.tell()}

    def close(self, *, ended: bool) -> SinkState:  # noqa: ARG002
        state = self.commit()
        self._let_go()
        return state

    def _opened(self) -> BinaryIO:
        assert self._file is not None, "open comes first"
        return self._file

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
