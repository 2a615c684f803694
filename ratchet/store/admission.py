"""Who may have a session. Like tokens and audit this is no projection: it is backed up, not rebuilt.

Whoever asks gets a row, and the first of those that wait get turns while fewer than the limit have one. A
point of priority counts like HEAD_START seconds of waiting. So the order of any two runs never changes, equal
ones are served as they came, and nobody waits for more than those who asked within 20 hours of it: that much
is between the highest priority and the lowest.

Whoever changes rows does so alone, so that no turn is given twice.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sqlalchemy import UniqueConstraint, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from ratchet.spec.admission import NAMED, AdmitAnswer, AdmitRequest, Place
from ratchet.store.models import Base
from ratchet.store.store import Store

HEAD_START = 3600.0
"""Seconds of waiting that a point of priority is worth."""
_LOCK = 0x7261746368657401
"""Of Postgres, held by whoever changes rows; any number that nobody else uses."""


class Admission(Base):
    """A run that has a session or waits for one."""

    __tablename__ = "admissions"
    __table_args__ = (UniqueConstraint("turn"),)

    run: Mapped[str] = mapped_column(primary_key=True)
    execution: Mapped[str]
    priority: Mapped[int]
    since: Mapped[float]
    turn: Mapped[int | None]
    """Rises with every turn that is given while others have one; None: it waits."""
    waiter_execution: Mapped[str | None]
    waiter_activity: Mapped[str | None]
    """The activity that is to be told of its turn; None once it was."""


class AdmissionRecord(NamedTuple):
    """A run that has a session or waits for one."""

    run: str
    execution: str
    """The first execution of its workflow."""
    priority: int
    since: float
    turn: int | None
    waiter_execution: str | None
    waiter_activity: str | None


@dataclass(frozen=True)
class Queue:
    """Who has a session and who waits for one, at one moment."""

    holders: Sequence[AdmissionRecord]
    """The oldest turn first."""
    waiting: Sequence[AdmissionRecord]
    """In the order in which they get theirs."""

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {record.run: position for position, record in enumerate(self.waiting)}

    def place(self, run: str) -> Place | None:
        """Where a run waits; None if it does not."""
        position = self._positions.get(run)
        if position is None:
            return None
        return Place(
            ahead=_names(self.waiting[: min(position, NAMED)]),
            num_ahead=position,
            holders=_names(self.holders[:NAMED]),
            num_holders=len(self.holders),
            priority=self.waiting[position].priority,
            since=self.waiting[position].since,
        )


class Admissions:
    """The queue for sessions. Every method blocks, and raises Unavailable like the store's own.

    `limit`: so many runs may have a session; None: any number.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def ask(
        self, request: AdmitRequest, limit: int | None, waiter: tuple[str, str] | None = None
    ) -> AdmitAnswer:
        """Give the run a place, unless this workflow has one, and give turns; where it stands then.

        `waiter`: workflow execution and id of the activity that is to be told of a turn that comes later. It
        waits in a place that was given before, and gets none: it may come late, after the place was left.
        """
        with self._alone() as session:
            row = session.get(Admission, request.run)
            if row is not None and row.execution != request.execution:  # the run was begun again
                session.delete(row)
                session.flush()
                row = None
            if row is None and waiter:
                return AdmitAnswer(forgotten=True)
            if row is None:
                row = Admission(
                    run=request.run,
                    execution=request.execution,
                    priority=request.priority,
                    since=request.since,
                    turn=None,
                    waiter_execution=None,
                    waiter_activity=None,
                )
                session.add(row)
            if request.holds and row.turn is None:
                _give(session, [row])
            _give_turns(session, limit)
            if row.turn is None:
                row.waiter_execution, row.waiter_activity = waiter or (None, None)
                return AdmitAnswer(place=_queue(session).place(request.run))
            row.waiter_execution = row.waiter_activity = None
            return AdmitAnswer()

    def release(self, run: str, execution: str) -> None:
        """Take a run's place or turn back, if it is this workflow's. Again: no effect."""
        with self._alone() as session:
            row = session.get(Admission, run)
            if row is not None and row.execution == execution:
                session.delete(row)

    def give_turns(self, limit: int | None) -> list[AdmissionRecord]:
        """Give the turns that can be given: whoever has one, and was not told of it."""
        with self._alone() as session:
            _give_turns(session, limit)
            return [record for record in _queue(session).holders if record.waiter_activity]

    def told(self, record: AdmissionRecord) -> None:
        """The run knows of its turn."""
        with self._alone() as session:
            row = session.get(Admission, record.run)
            waiter = (record.waiter_execution, record.waiter_activity)
            if row is not None and (row.waiter_execution, row.waiter_activity) == waiter:
                row.waiter_execution = row.waiter_activity = None

    def queue(self) -> Queue:
        with self._store.reading() as session:
            return _queue(session)

    @contextmanager
    def _alone(self) -> Generator[Session, None, None]:
        """A transaction beside no other one of these. (On SQLite, none that writes has another beside it.)"""
        with self._store.writing() as session:
            if session.get_bind().dialect.name != "sqlite":
                session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            yield session


def _queue(session: Session) -> Queue:
    session.flush()
    holders = _COLUMNS.where(Admission.turn.is_not(None)).order_by(Admission.turn)
    waiting = _COLUMNS.where(Admission.turn.is_(None)).order_by(*_ORDER)
    return Queue(
        holders=[AdmissionRecord(*row) for row in session.execute(holders)],
        waiting=[AdmissionRecord(*row) for row in session.execute(waiting)],
    )


def _give_turns(session: Session, limit: int | None) -> None:
    session.flush()
    first = select(Admission).where(Admission.turn.is_(None)).order_by(*_ORDER)
    if limit is not None:
        held = select(func.count()).where(Admission.turn.is_not(None))
        first = first.limit(max(limit - (session.scalar(held) or 0), 0))
    _give(session, session.scalars(first).all())


def _give(session: Session, rows: Sequence[Admission]) -> None:
    newest = session.scalar(select(func.max(Admission.turn))) or 0
    for turn, row in enumerate(rows, newest + 1):
        row.turn = turn


def _names(records: Sequence[AdmissionRecord]) -> tuple[str, ...]:
    return tuple(record.run for record in records)


_ORDER = (Admission.since - HEAD_START * Admission.priority, Admission.since, Admission.run)
_COLUMNS = select(*(getattr(Admission, name) for name in AdmissionRecord._fields))
