"""News of runs, read from the outbox and the rows that it tells of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import JsonValue
from sqlalchemy import ColumnElement, and_, false, or_, select
from sqlalchemy.orm import Session

from ratchet.sinks.news import Alarm, News, Point, Restart
from ratchet.spec import names
from ratchet.spec.state import RunPhase
from ratchet.store import NoticeRecord, RunRecord, Store
from ratchet.store.models import Evaluation, Step
from ratchet.store.outbox import Notice
from ratchet.store.records import STEP_MEASUREMENTS

PAGE = 500

_EVALUATION_COLUMNS = ("accuracy", "reward_mean", "length_mean")


class Source:
    """The store, as sinks see it. Every method blocks, and raises Unavailable while the store is away."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self) -> int:
        """The id of the newest notice."""
        return self._store.newest_notice()

    def runs_told_of(self, after: int, upto: int) -> list[str]:
        """Runs with notices in (after, upto]."""
        with self._store.reading() as session:
            query = select(Notice.run).where(Notice.id > after, Notice.id <= upto).distinct()
            return list(session.scalars(query))

    def run(self, run: str) -> RunRecord | None:
        return self._store.get_run(run)

    def page(self, run: str, after: int) -> list[tuple[int, News | None]]:
        """The next PAGE notices of a run, by id, each with the news in it if there is any."""
        notices = self._store.notices(run, after=after, limit=PAGE)
        with self._store.reading() as session:
            points = {
                (point.series, point.incarnation, point.step): point
                for point in (*_steps(session, run, notices), *_evaluations(session, run, notices))
            }
        return [
            (
                notice.id,
                points.get((notice.kind, notice.incarnation, int(str(notice.data["step"]))))
                if notice.kind in ("step", "evaluation")
                else _other(notice),
            )
            for notice in notices
        ]


def _steps(session: Session, run: str, notices: Sequence[NoticeRecord]) -> Iterable[Point]:
    for row in session.scalars(select(Step).where(Step.run == run, _range(Step, notices, "step"))):
        values = {name: getattr(row, column) for name, column in STEP_MEASUREMENTS.items()}
        values |= {"seconds": row.finished_at - row.started_at, "incarnation": row.incarnation}
        yield Point("step", row.incarnation, row.step, row.finished_at, _numbers(row.metrics | values))


def _evaluations(session: Session, run: str, notices: Sequence[NoticeRecord]) -> Iterable[Point]:
    query = select(Evaluation).where(Evaluation.run == run, _range(Evaluation, notices, "evaluation"))
    for row in session.scalars(query):
        values = {f"evaluation/{name}": getattr(row, name) for name in _EVALUATION_COLUMNS}
        yield Point("evaluation", row.incarnation, row.step, row.evaluated_at, _numbers(values))


def _range(
    table: type[Step] | type[Evaluation], notices: Sequence[NoticeRecord], kind: str
) -> ColumnElement[bool]:
    """The rows that notices of a kind tell of, as ranges of the primary key."""
    told: dict[int, list[int]] = {}
    for notice in notices:
        if notice.kind == kind:
            told.setdefault(notice.incarnation, []).append(int(str(notice.data["step"])))
    return or_(
        false(),
        *(
            and_(table.incarnation == number, table.step.between(min(steps), max(steps)))
            for number, steps in told.items()
        ),
    )


def _other(notice: NoticeRecord) -> News | None:
    data = notice.data
    match notice.kind:
        case "incarnation":
            return Restart(notice.incarnation, int(str(data["restored_step"])), notice.at)
        case "event" if data["topic"] == names.TOPIC_INCIDENT:
            found = data["data"]
            details: dict[str, JsonValue] = found if isinstance(found, dict) else {}
            return _alarm(notice, "incident", str(data["key"]), str(data["message"]), details)
        case "state" if data["phase"] == RunPhase.FAILED:
            fault = data.get("fault")
            message = str(fault["message"]) if isinstance(fault, dict) else "no reason was given"
            return _alarm(notice, "failed", f"failed/{notice.id}", message, {"fault": fault})
        case _:
            return None


def _alarm(
    notice: NoticeRecord,
    kind: Literal["incident", "failed"],
    key: str,
    message: str,
    data: dict[str, JsonValue],
) -> Alarm:
    identity = f"{notice.run}/{notice.incarnation}/{key}"
    return Alarm(identity, kind, notice.run, notice.incarnation, notice.at, message, data)


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
