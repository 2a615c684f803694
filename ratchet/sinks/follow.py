"""One sink of one run: how far it is, and the next piece of the way.

The position, and what the sink itself needs to know of it, are one row, written *after* the sink has what
comes before the position. A process that is killed in between has written more than its position says; the
sink is told the old position when it is opened again, and takes that back or skips it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from pydantic import JsonValue

from ratchet.sinks.news import Course, News
from ratchet.sinks.reading import Source
from ratchet.store import KeptPosition, SinkPositions

SinkState = dict[str, JsonValue]


class Sink(Protocol):
    """Where news of one run go. Every method blocks; Unavailable: not now. Used by one thread at a time."""

    takes_back: bool
    """Whether points beyond a Restart can be removed. If not, only the first point of a step is written."""
    tells: tuple[type[News], ...]
    """What it wants to hear."""
    at_once: int
    """News between two commits, at most."""
    lasts_after_close: bool
    """`commit` answers None: what was written lasts once it is closed."""
    given_up: int
    """News that it did not take and never will, in this process."""

    def open(self, state: SinkState) -> bool:
        """Stand where `commit` answered `state` ({}: at the beginning), whatever was written after it; also
        after any error. False: what the state speaks of is gone, and it stands at the beginning."""
        ...

    def write(self, news: Sequence[News]) -> None: ...

    def commit(self) -> SinkState | None:
        """What `open` is to be told, now that everything written lasts; None: see `lasts_after_close`."""
        ...

    def close(self, *, ended: bool) -> SinkState:
        """Let go of everything, for now or because the run has ended; what `open` is to be told."""
        ...


class Follow:
    """Takes a run's news to a sink, page by page. Every method blocks, and waits for any other one."""

    def __init__(
        self, run: str, name: str, positions: SinkPositions, source: Source, make: Callable[[], Sink]
    ) -> None:
        """`make` may raise SpecError: the sink's package or its secret is missing, and is looked for
        again."""
        self.run, self.name = run, name
        self.written = 0
        """Points and alarms that the sink took from this process."""
        self._positions, self._source, self._make = positions, source, make
        self._sink: Sink | None = None
        self._open = False
        self._lock = threading.Lock()
        self._kept: KeptPosition | None = None
        """What is in the store."""
        self._at = _Place()

    @property
    def after(self) -> int:
        """The sink has every notice up to this id."""
        return self._at.after

    @property
    def given_up(self) -> int:
        return self._sink.given_up if self._sink else 0

    def begin(self) -> None:
        """Leave word that there is something to follow, whatever becomes of this process. Raises
        Unavailable."""
        with self._lock:
            self._go_back()
            if self._kept is None or self._kept.ended:
                self._keep(ended=False)

    def advance(self) -> bool:
        """Take the next page to the sink; False if there is none. Raises Unavailable, SpecError, Conflict, or
        whatever the sink's own client raises; the next call begins with the last position that was kept."""
        with self._lock:
            page = self._source.page(self.run, self._at.after)
            if not page:
                return False
            try:
                self._take(page)
            except BaseException:
                self._open = False
                raise
            return True

    def end(self) -> bool:
        """The run has ended, and everything of it is in the sink: so has that. False if it is not, since the
        sink had lost it. Raises like `advance`."""
        with self._lock:
            before = self._at.after
            sink = self._opened()
            if self._at.after != before:
                return False
            self._let_go(sink, ended=True)
            return True

    def pause(self) -> None:
        """Let the sink go, where it is. Raises like `advance`."""
        with self._lock:
            if self._sink is not None and self._open:
                self._let_go(self._sink, ended=False)

    def _let_go(self, sink: Sink, *, ended: bool) -> None:
        self._open = False
        self._at = replace(self._at, state=sink.close(ended=ended))
        self._keep(ended=ended)

    def _take(self, page: Sequence[tuple[int, News | None]]) -> None:
        before = self._at.after
        sink = self._opened()
        if self._at.after != before:
            return  # another page, then
        for last, news in _cut(page, sink):
            chosen, course = self._at.course.choose(news, takes_back=sink.takes_back)
            wanted = [item for item in chosen if isinstance(item, sink.tells)]
            if wanted:
                sink.write(wanted)
            state = sink.commit() if wanted else None
            self._at = _Place(last, course, self._at.state if state is None else state)
            if state is not None or not (wanted or sink.lasts_after_close):
                self._keep(ended=False)
            self.written += len(wanted)

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = self._make()
        if not self._open:
            self._go_back()
            if not self._sink.open(self._at.state):
                self._at = _Place()
            self._open = True
        return self._sink

    def _go_back(self) -> None:
        """Stand where the store says."""
        self._kept = self._positions.get(self.run, self.name)
        self._at = _Place.of(self._kept or KeptPosition())

    def _keep(self, *, ended: bool) -> None:
        to = self._at.kept(ended=ended)
        self._positions.move(self.run, self.name, self._kept, to)
        self._kept = to


@dataclass(frozen=True, slots=True)
class _Place:
    """A position, with what it means."""

    after: int = 0
    course: Course = field(default_factory=Course)
    state: SinkState = field(default_factory=dict)

    @classmethod
    def of(cls, kept: KeptPosition) -> Self:
        course, state = kept.state.get("course"), kept.state.get("sink")
        return cls(kept.after, Course.model_validate(course or {}), state if isinstance(state, dict) else {})

    def kept(self, *, ended: bool) -> KeptPosition:
        state: SinkState = {"course": self.course.model_dump(mode="json"), "sink": self.state}
        return KeptPosition(after=self.after, state=state, ended=ended)


def _cut(page: Sequence[tuple[int, News | None]], sink: Sink) -> list[tuple[int, list[News]]]:
    """The page in pieces of `at_once` wanted news, each with the id of its last notice."""
    pieces: list[tuple[int, list[News]]] = []
    news: list[News] = []
    wanted = 0
    for number, item in page:
        if item is not None:
            news.append(item)
            wanted += isinstance(item, sink.tells)
        if wanted == sink.at_once:
            pieces.append((number, news))
            news, wanted = [], 0
    if not pieces or pieces[-1][0] != page[-1][0]:
        pieces.append((page[-1][0], news))
    return pieces
