"""What is read. Each function runs inside one transaction, so it sees one moment."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, and_, false, func, or_, select, true, tuple_
from sqlalchemy.orm import Session

from ratchet.spec.faults import Conflict
from ratchet.spec.state import RunPhase
from ratchet.store.models import Checkpoint, Evaluation, Event, Incarnation, Run, Step
from ratchet.store.records import (
    CheckpointRecord,
    EvaluationRecord,
    EventRecord,
    Glance,
    IncarnationRecord,
    RunRecord,
    StepRecord,
)

Path = dict[int, int | None]
"""Incarnation -> its last step on the way back from the head (None: all of them), newest first."""


def get_run(session: Session, run: str) -> RunRecord | None:
    row = session.get(Run, run)
    return None if row is None else RunRecord.model_validate(row)


def list_runs(
    session: Session, limit: int, before: str | None, phases: Collection[RunPhase], recipe: str | None
) -> list[RunRecord]:
    query = select(Run).order_by(Run.created_at.desc(), Run.id.desc()).limit(limit)
    if phases:
        query = query.where(Run.phase.in_(phases))
    if recipe is not None:
        query = query.where(Run.recipe == recipe)
    if before is not None:
        last = session.get(Run, before)
        if last is None:
            raise Conflict(f"no run {before} to list on from: start the list again")
        query = query.where(tuple_(Run.created_at, Run.id) < (last.created_at, last.id))
    return [RunRecord.model_validate(row) for row in session.scalars(query)]


def incarnations(session: Session, run: str) -> list[IncarnationRecord]:
    query = select(Incarnation).where(Incarnation.run == run).order_by(Incarnation.number)
    return [IncarnationRecord.model_validate(row) for row in session.scalars(query)]


def steps(session: Session, run: str, since: int) -> list[StepRecord]:
    query = select(Step).where(Step.run == run, Step.step > since).order_by(Step.step, Step.incarnation)
    return [StepRecord.model_validate(row) for row in session.scalars(query)]


def steps_on_path(session: Session, run: str, since: int) -> list[StepRecord]:
    query = select(Step).where(Step.run == run, _among(path(session, run), Step, since))
    # Two are left of one step only while the restore of the newer incarnation is not recorded yet.
    newest = {row.step: row for row in session.scalars(query.order_by(Step.step, Step.incarnation))}
    return [StepRecord.model_validate(row) for row in newest.values()]


def checkpoints_on_path(session: Session, run: str) -> list[CheckpointRecord]:
    query = select(Checkpoint).where(Checkpoint.run == run, _among(path(session, run), Checkpoint))
    rows = session.scalars(query.order_by(Checkpoint.step, Checkpoint.incarnation))
    return [CheckpointRecord.model_validate(row) for row in {row.step: row for row in rows}.values()]


def evaluations_on_path(session: Session, run: str) -> list[EvaluationRecord]:
    return _evaluations_among(session, run, path(session, run))


def _evaluations_among(session: Session, run: str, lives: Path) -> list[EvaluationRecord]:
    query = select(Evaluation).where(Evaluation.run == run, _among(lives, Evaluation))
    rows = session.scalars(query.order_by(Evaluation.step, Evaluation.incarnation))
    return [EvaluationRecord.model_validate(row) for row in {row.step: row for row in rows}.values()]


def glance(session: Session, run: str, at: int, topic: str, last: int) -> Glance:
    lives = path(session, run)
    step, saved = Step, Checkpoint
    steps = select(step).where(step.run == run, step.step == at, _among(lives, step))
    saves = select(saved).where(saved.run == run, _among(lives, saved))
    newest_step = session.scalar(steps.order_by(step.incarnation.desc()).limit(1))
    newest_save = session.scalar(saves.order_by(saved.step.desc(), saved.incarnation.desc()).limit(1))
    return Glance(
        last_step=None if newest_step is None else StepRecord.model_validate(newest_step),
        last_checkpoint=None if newest_save is None else CheckpointRecord.model_validate(newest_save),
        evaluations=_evaluations_among(session, run, lives),
        events=events_about(session, run, topic, last),
    )


def path(session: Session, run: str) -> Path:
    """The way back from the head.

    From an incarnation that was restored, it goes on with the one that made its checkpoint, which need not be
    the one before.
    """
    rows = session.scalars(select(Incarnation).where(Incarnation.run == run))
    lives = {row.number: row for row in rows}
    found: dict[int, int | None] = {}
    number, last = max(lives, default=0), None
    while number in lives:
        found[number] = last
        life = lives[number]
        before = max((other for other in lives if other < number), default=0)
        if life.restored_step is None:  # not yet: until then nothing is taken back
            number = before
            continue
        last = life.restored_step if last is None else min(last, life.restored_step)
        # A fork's first incarnations grow from another run: what is left of this one lies beyond `last`.
        number = before if life.parent_incarnation is None else min(life.parent_incarnation, before)
    return found


def _among(
    lives: Path, table: type[Step] | type[Checkpoint] | type[Evaluation], since: int = -1
) -> ColumnElement[bool]:
    """Rows of steps after `since`. Each life is a range of the primary key: none of the others is read."""
    return or_(
        false(),
        *(
            and_(
                table.incarnation == number,
                table.step > since,
                true() if last is None else table.step <= last,
            )
            for number, last in lives.items()
        ),
    )


def first_trained(session: Session, run: str, since: int) -> dict[int, int]:
    query = select(Step.step, func.min(Step.incarnation)).where(Step.run == run, Step.step > since)
    return {row[0]: row[1] for row in session.execute(query.group_by(Step.step))}


def checkpoints(session: Session, run: str) -> list[CheckpointRecord]:
    query = select(Checkpoint).where(Checkpoint.run == run).order_by(Checkpoint.incarnation, Checkpoint.step)
    return [CheckpointRecord.model_validate(row) for row in session.scalars(query)]


def evaluations(session: Session, run: str) -> list[EvaluationRecord]:
    query = select(Evaluation).where(Evaluation.run == run).order_by(Evaluation.incarnation, Evaluation.step)
    return [EvaluationRecord.model_validate(row) for row in session.scalars(query)]


def events(session: Session, run: str | None, since: int, limit: int) -> list[EventRecord]:
    query = select(Event).where(Event.id > since).order_by(Event.id).limit(limit)
    if run is not None:
        query = query.where(Event.run == run)
    return [EventRecord.model_validate(row) for row in session.scalars(query)]


def events_about(session: Session, run: str, topic: str, last: int | None) -> list[EventRecord]:
    query = select(Event).where(Event.run == run, Event.topic == topic)
    rows = session.scalars(query.order_by(Event.at.desc(), Event.id.desc()).limit(last)).all()
    return [EventRecord.model_validate(row) for row in reversed(rows)]
