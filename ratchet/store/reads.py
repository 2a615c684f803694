"""What is read. Each function runs inside one transaction, so it sees one moment."""

from collections.abc import Collection

from sqlalchemy import exists, select, tuple_
from sqlalchemy.orm import Session, aliased

from ratchet.spec.faults import Conflict
from ratchet.spec.state import RunPhase
from ratchet.store.models import Checkpoint, Evaluation, Event, Incarnation, Run, Step
from ratchet.store.records import (
    CheckpointRecord,
    EvaluationRecord,
    EventRecord,
    IncarnationRecord,
    RunRecord,
    StepRecord,
)


def get_run(session: Session, run: str) -> RunRecord | None:
    row = session.get(Run, run)
    return None if row is None else RunRecord.model_validate(row)


def list_runs(
    session: Session, limit: int, before: str | None, phases: Collection[RunPhase]
) -> list[RunRecord]:
    query = select(Run).order_by(Run.created_at.desc(), Run.id.desc()).limit(limit)
    if phases:
        query = query.where(Run.phase.in_(phases))
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
    later = aliased(Incarnation)
    abandoned = exists().where(
        later.run == Step.run, later.number > Step.incarnation, later.restored_step < Step.step
    )
    query = (
        select(Step)
        .where(Step.run == run, Step.step > since, ~abandoned)
        .order_by(Step.step, Step.incarnation)
    )
    # Two are left of one step only while the restore of the newer incarnation is not recorded yet.
    newest = {row.step: row for row in session.scalars(query)}
    return [StepRecord.model_validate(row) for row in newest.values()]


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
