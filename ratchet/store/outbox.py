"""The outbox: what is told to whoever follows runs, written in the transaction of what it tells.

Ids rise in the order in which transactions commit, without gaps: whoever has seen id n has seen everything
below it, and goes on above it. A database's own sequence does not promise that, since a transaction may take
a number and commit after one that took a later number. So the next number is a row, locked from taking it to
the commit; it is taken last, and held for a moment only.
"""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, JsonValue
from sqlalchemy import Index, UniqueConstraint, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from ratchet.spec.control import (
    AnyEntry,
    CheckpointEntry,
    EvaluationEntry,
    EventEntry,
    IncarnationEntry,
    RecordRequest,
    RegisterRun,
    StateEntry,
    StepEntry,
)
from ratchet.store.models import Base, JsonObject
from ratchet.store.rows import checkpoint_row, evaluation_row, step_row


class Notice(Base):
    """Something that happened to a run."""

    __tablename__ = "outbox"
    __table_args__ = (UniqueConstraint("run", "incarnation", "key"), Index(None, "run", "id"))

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run: Mapped[str]
    incarnation: Mapped[int]
    key: Mapped[str]
    kind: Mapped[str]
    at: Mapped[float]
    data: Mapped[JsonObject]


class OutboxHead(Base):
    """One row: the id of the newest notice."""

    __tablename__ = "outbox_head"

    one: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    newest: Mapped[int]


class NoticeRecord(BaseModel):
    """Something that happened to a run."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    id: int
    run: str
    incarnation: int
    kind: str
    """registered, state, incarnation, step, checkpoint, evaluation or event."""
    at: float
    data: dict[str, JsonValue]


def tell_registered(session: Session, request: RegisterRun, at: float) -> None:
    """A run, or a new incarnation that reopens it. Again: no effect."""
    data: JsonObject = {"name": request.spec.name, "max_num_steps": request.spec.grpo.max_num_steps}
    notice = _notice(request.run, request.incarnation, "registered", "registered", at, data)
    _write(session, request.run, request.incarnation, [notice])


def tell(session: Session, request: RecordRequest) -> None:
    """Every entry of a request. Again: no effect. The run's row is locked already, so that nobody else tells
    of this run at the same time."""
    notices = [_told(request, place, entry) for place, entry in enumerate(request.entries)]
    _write(session, request.run, request.incarnation, notices)


def notices(session: Session, run: str | None, after: int, limit: int) -> list[NoticeRecord]:
    """Notices with an id above `after`, in order; of all runs, if none is named."""
    query = select(Notice).where(Notice.id > after).order_by(Notice.id).limit(limit)
    if run is not None:
        query = query.where(Notice.run == run)
    return [NoticeRecord.model_validate(row) for row in session.scalars(query)]


def newest(session: Session) -> int:
    """The id of the newest notice; 0 if there is none."""
    return session.scalar(select(func.max(OutboxHead.newest))) or 0


def _write(session: Session, run: str, incarnation: int, told: Iterable[Notice]) -> None:
    by_key = {notice.key: notice for notice in told}
    query = select(Notice.key).where(
        Notice.run == run, Notice.incarnation == incarnation, Notice.key.in_(by_key)
    )
    known = set(session.scalars(query))
    new = [notice for key, notice in by_key.items() if key not in known]
    if not new:
        return
    session.flush()
    session.execute(update(OutboxHead).values(newest=OutboxHead.newest + len(new)))
    last = session.scalars(select(OutboxHead.newest)).one()
    for number, notice in enumerate(new, last - len(new) + 1):
        notice.id = number
        session.add(notice)


def _told(request: RecordRequest, place: int, entry: AnyEntry) -> Notice:
    key, data = _content(request, place, entry)
    return _notice(request.run, request.incarnation, key, entry.kind, request.at, data)


def _content(request: RecordRequest, place: int, entry: AnyEntry) -> tuple[str, JsonObject]:
    """What makes it one notice, however often it is recorded, and what it says."""
    match entry:
        case StateEntry():
            # Workflow time is the same on a retry.
            return f"state/{request.at!r}/{place}", entry.model_dump(mode="json", exclude={"kind"})
        case IncarnationEntry():
            receipt = entry.receipt
            return "incarnation", {
                "restored_step": receipt.version.step,
                "version": str(receipt.version),
                "from_checkpoint": receipt.checkpoint,
            }
        case StepEntry():
            row = step_row(request, entry)
            return f"step/{entry.step}", {
                "step": row.step,
                "version": f"{row.incarnation}.{row.step}.{row.version_digest[:8]}",
                "reward_mean": row.reward_mean,
                "accuracy": row.accuracy,
                "length_mean": row.length_mean,
                "num_tokens": row.num_tokens,
                "logprob_error": row.logprob_error,
                "seconds": row.finished_at - row.started_at,
            }
        case CheckpointEntry():
            saved = checkpoint_row(request, entry)
            return f"checkpoint/{entry.step}", {"step": saved.step, "num_bytes": saved.num_bytes}
        case EvaluationEntry():
            seen = evaluation_row(request, entry)
            return f"evaluation/{entry.step}", {
                "step": seen.step,
                "accuracy": seen.accuracy,
                "reward_mean": seen.reward_mean,
            }
        case EventEntry():
            return f"event/{entry.key}", {
                "key": entry.key,
                "topic": entry.topic,
                "message": entry.message,
                "data": entry.data,
            }


def _notice(run: str, incarnation: int, key: str, kind: str, at: float, data: JsonObject) -> Notice:
    return Notice(id=0, run=run, incarnation=incarnation, key=key, kind=kind, at=at, data=data)
