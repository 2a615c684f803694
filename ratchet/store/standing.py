"""What a list of runs says beside their rows: the newest reward, the newest incident, and how much of its
time a run has used. Two statements, however many runs there are."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from ratchet.spec import names
from ratchet.spec.faults import Incident
from ratchet.store.models import Event, Incarnation, Run, Step
from ratchet.store.records import EventRecord, RunRecord
from ratchet.store.store import Store

Interval = tuple[float, float]
"""Epoch seconds."""


@dataclass(frozen=True, slots=True)
class Standing:
    reward_mean: float | None
    """Of the step at the head."""
    incident: EventRecord | None
    """The newest one."""
    ettr: float | None
    """Effective training time ratio; None until the run has weights. See `_lost`."""


class Standings:
    """Asked of a store. Blocks, and raises Unavailable like it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, runs: Sequence[RunRecord], *, now: float) -> dict[str, Standing]:
        """By run. `now`: epoch seconds, the end of those that have not ended."""
        if not runs:
            return {}
        with self._store.reading() as session:
            lives = _lives(session, runs)
            incidents = _incidents(session, runs)
        return {run.id: _standing(run, lives[run.id], incidents[run.id], now) for run in runs}


@dataclass(frozen=True, slots=True)
class _Life:
    """An incarnation, beside two steps: the one it grew from, and its own at the run's head."""

    opened_at: float
    restored_at: float | None
    restored_step: int | None
    parent: int | None
    """The incarnation of the same run that it grew from; None: the base model, another run, not yet."""
    grew_at: float | None
    """When the step was finished whose weights it began with."""
    reward_mean: float | None
    """Of its step at the head, on the path to it or not."""


def _lives(session: Session, runs: Sequence[RunRecord]) -> defaultdict[str, dict[int, _Life]]:
    """By run and number. The two steps are subqueries, since a join of three tables leaves it to a planner's
    guess whether a step is found by its whole key or among all of its incarnation."""
    life, step = Incarnation, Step
    own = case((life.parent_run == life.run, life.parent_incarnation))
    grew = select(step.finished_at).where(
        step.run == life.run, step.incarnation == own, step.step == life.restored_step
    )
    head = select(step.reward_mean).where(
        step.run == life.run, step.incarnation == life.number, step.step == Run.step
    )
    query = (
        select(
            life.run,
            life.number,
            life.opened_at,
            life.restored_at,
            life.restored_step,
            own,
            grew.scalar_subquery(),
            head.scalar_subquery(),
        )
        .join(Run, Run.id == life.run)
        .where(life.run.in_([run.id for run in runs]))
    )
    found: defaultdict[str, dict[int, _Life]] = defaultdict(dict)
    for run, number, opened_at, restored_at, restored_step, parent, grew_at, reward in session.execute(query):
        found[run][number] = _Life(opened_at, restored_at, restored_step, parent, grew_at, reward)
    return found


def _incidents(session: Session, runs: Sequence[RunRecord]) -> defaultdict[str, list[EventRecord]]:
    """Oldest first."""
    query = select(Event).where(Event.run.in_([run.id for run in runs]), Event.topic == names.TOPIC_INCIDENT)
    found: defaultdict[str, list[EventRecord]] = defaultdict(list)
    for event in session.scalars(query.order_by(Event.run, Event.at, Event.id)):
        found[event.run].append(EventRecord.model_validate(event))
    return found


def _standing(
    run: RunRecord, lives: Mapping[int, _Life], incidents: Sequence[EventRecord], now: float
) -> Standing:
    end = run.ended_at or now
    ettr = None
    if end > run.created_at and any(life.restored_at is not None for life in lives.values()):
        lost = covered(_lost(run, lives, incidents, end), run.created_at, end)
        ettr = 1.0 - lost / (end - run.created_at)
    maker = lives.get(_maker(lives, run.step))
    return Standing(maker.reward_mean if maker else None, incidents[-1] if incidents else None, ettr)


def _maker(lives: Mapping[int, _Life], step: int) -> int:
    """The incarnation on the path to the head whose step this is."""
    number = max(lives, default=0)
    while number in lives:
        life = lives[number]
        if life.parent is None or life.restored_step is None or step > life.restored_step:
            break
        if life.parent >= number:  # damaged rows are no reason to go round in circles
            break
        number = life.parent
    return number


def _lost(
    run: RunRecord, lives: Mapping[int, _Life], incidents: Iterable[EventRecord], end: float
) -> Iterator[Interval]:
    """Times that brought the run no further: until it had weights for the first time; between a step and the
    restore that went back to it, with everything trained in between; and incidents it got over in place."""
    newest = max(lives)
    for number, life in lives.items():
        if life.restored_at is not None:
            begin = run.created_at if life.parent is None else life.grew_at or life.opened_at
            yield begin, life.restored_at
        elif number == newest:
            yield life.opened_at, end
    for event in incidents:
        incident = Incident.model_validate(event.data)
        if incident.seconds is not None:
            yield incident.detected_at, incident.detected_at + incident.seconds


def covered(intervals: Iterable[Interval], begin: float, end: float) -> float:
    """Seconds of [begin, end] that lie in any of the intervals."""
    total, reached = 0.0, begin
    for first, last in sorted(intervals):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total, reached = total + last - first, last
    return total
