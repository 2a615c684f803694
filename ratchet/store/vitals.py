"""What monitoring asks of a store, at every scrape: few statements, none of which reads all steps."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from ratchet.spec import names
from ratchet.spec.state import RunPhase
from ratchet.store import outbox
from ratchet.store.models import Event, Run, Step
from ratchet.store.outbox import Notice
from ratchet.store.store import Store

MOST_RUNS = 500
"""So many runs that go on are told one by one, the newest first."""

_GOES_ON = [phase for phase in RunPhase if not phase.final]


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that has not ended."""

    run: str
    recipe: str
    phase: RunPhase
    incarnation: int
    step: int
    max_num_steps: int
    progressed_at: float | None
    """Workflow time of its newest step or phase."""
    seconds: Mapping[str, float] | None
    """Of its last step, by part: rollout, train, refit, other. None, like staleness, until the newest
    incarnation has trained one."""
    staleness: int | None
    """Steps between the weights that answered the last step's prompts and those that were trained."""


@dataclass(frozen=True, slots=True)
class Vitals:
    runs: Mapping[RunPhase, int]
    live: list[LiveRun]
    incidents: Mapping[str, int]
    """By what was lost, of all runs and times."""
    recoveries: Mapping[str, int]
    """Those of them that took a new incarnation."""
    newest_notice: int


@dataclass
class _Tally:
    """Incidents counted so far: everything that notices up to `upto` tell of."""

    upto: int = -1
    incidents: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)

    def add(self, key: str, data: JsonValue) -> None:
        lost = str(data.get("lost", "?")) if isinstance(data, dict) else "?"
        self.incidents[lost] += 1
        if key.startswith("recovery/"):
            self.recoveries[lost] += 1


class Monitor:
    """Reads vitals. Remembers what it has counted, so that only the first reading goes through all events (of
    which a run has few). Blocks, and raises Unavailable like the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tally = _Tally()
        self._lock = threading.Lock()

    def read(self) -> Vitals:
        with self._lock, self._store.reading() as session:
            newest = outbox.newest(session)
            self._count(session, newest)
            return Vitals(
                runs=_by_phase(session),
                live=_live(session),
                incidents=dict(self._tally.incidents),
                recoveries=dict(self._tally.recoveries),
                newest_notice=newest,
            )

    def _count(self, session: Session, newest: int) -> None:
        """Notices have no gaps: what came since the last reading is what is above it."""
        tally = _Tally(newest, self._tally.incidents.copy(), self._tally.recoveries.copy())
        if self._tally.upto < 0:
            for key, data in session.execute(
                select(Event.key, Event.data).where(Event.topic == names.TOPIC_INCIDENT)
            ):
                tally.add(key, data)
        elif newest > self._tally.upto:
            told = select(Notice.data).where(
                Notice.id > self._tally.upto, Notice.id <= newest, Notice.kind == "event"
            )
            for data in session.scalars(told):
                if data.get("topic") == names.TOPIC_INCIDENT:
                    tally.add(str(data["key"]), data["data"])
        self._tally = tally


def _by_phase(session: Session) -> dict[RunPhase, int]:
    counted = session.execute(select(Run.phase, func.count()).group_by(Run.phase))
    return dict.fromkeys(RunPhase, 0) | {row[0]: row[1] for row in counted}


def _live(session: Session) -> list[LiveRun]:
    head = and_(Step.run == Run.id, Step.incarnation == Run.incarnation, Step.step == Run.step)
    query = select(
        Run.id,
        Run.recipe,
        Run.phase,
        Run.incarnation,
        Run.step,
        Run.max_num_steps,
        Run.step_at,
        Run.phase_at,
        Step.started_at,
        Step.finished_at,
        Step.rollout_engine_s,
        Step.train_engine_s,
        Step.refit_engine_s,
        Step.rollout_step,
    ).outerjoin(Step, head)
    query = query.where(Run.phase.in_(_GOES_ON)).order_by(Run.created_at.desc()).limit(MOST_RUNS)
    found: list[LiveRun] = []
    for row in session.execute(query):
        seconds = None
        if row.finished_at is not None:
            parts = {
                "rollout": row.rollout_engine_s,
                "train": row.train_engine_s,
                "refit": row.refit_engine_s,
            }
            rest = row.finished_at - row.started_at - sum(parts.values())
            seconds = {**parts, "other": max(0.0, rest)}
        times = [at for at in (row.step_at, row.phase_at) if at is not None]
        found.append(
            LiveRun(
                run=row.id,
                recipe=row.recipe,
                phase=row.phase,
                incarnation=row.incarnation,
                step=row.step,
                max_num_steps=row.max_num_steps,
                progressed_at=max(times, default=None),
                seconds=seconds,
                staleness=None if row.rollout_step is None else max(0, row.step - 1 - row.rollout_step),
            )
        )
    return found
