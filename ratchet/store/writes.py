"""What is written: append-only rows, each written once, and the head of a run, fenced.

Every function runs inside one write transaction and locks the run's row first, so that the writes of a run
happen one after the other. Rows of an old incarnation are taken (they tell what it did); the head never
moves because of one.
"""

import hashlib
from collections.abc import Mapping

from pydantic import JsonValue
from sqlalchemy import inspect, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ratchet.artifacts.manifest import parse_checkpoint_key
from ratchet.spec import names
from ratchet.spec.control import (
    CheckpointEntry,
    EvaluationEntry,
    EventEntry,
    IncarnationEntry,
    RecordRequest,
    RegisterRun,
    StateEntry,
    StepEntry,
)
from ratchet.spec.faults import Conflict, NotOnRecord
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase
from ratchet.store.models import Base, Checkpoint, Evaluation, Event, Incarnation, Run, Step
from ratchet.store.rows import checkpoint_row, evaluation_row, event_row, step_row

_NOT_CONTENT = frozenset({"id", "at", "restored_at", "committed_at", "evaluated_at"})
"""Columns that say when or in which order a row came, not what it says."""
_COUNTS = ("submits", "starts")
"""Neither do these: an operation that is joined again, after a reset say, has been asked for once more."""


_LATER = frozenset(
    {"inputs", "parent_run", "rollout_incarnation", "rollout_step", "rollout_digest", "dropped"}
)
"""Columns that rows of older revisions may lack."""


def register_run(
    session: Session,
    request: RegisterRun,
    at: float,
    code: Mapping[str, str],
    inputs: Mapping[str, JsonValue] | None,
) -> None:
    """Write the run's row and open its incarnation; a newer incarnation reopens an ended run.

    Raises Conflict for another spec, another workflow, or an incarnation older than the newest.
    """
    run = session.get(Run, request.run, with_for_update=True)
    if run is None:
        try:
            with session.begin_nested():
                session.add(_first_row(request, at, code, inputs))
                _add_incarnation(session, request.run, request.incarnation, at)
            return
        except IntegrityError:  # another process was faster by a moment: a row that is not there has no lock
            run = session.get_one(Run, request.run, with_for_update=True)
    if not _same_but_longer(RunSpec.model_validate(run.spec), request.spec):
        raise Conflict(f"run {run.id} is registered with another spec: launch it under another id")
    if request.incarnation > run.incarnation:
        run.workflow_run_id = request.workflow_run_id
        run.max_num_steps = request.spec.grpo.max_num_steps
    elif request.incarnation == run.incarnation and request.workflow_run_id != run.workflow_run_id:
        raise Conflict(
            f"incarnation {run.incarnation} of run {run.id} belongs to workflow execution "
            f"{run.workflow_run_id}, not {request.workflow_run_id}: open a newer incarnation"
        )
    if request.incarnation < run.incarnation and not session.get(Incarnation, (run.id, request.incarnation)):
        raise Conflict(
            f"incarnation {request.incarnation} of run {run.id} cannot open after {run.incarnation}: "
            "they only rise"
        )
    _open_incarnation(session, run, request.incarnation, at)


def record(session: Session, request: RecordRequest) -> None:
    """Write the rows of a request. Raises Conflict when a key is taken by a row that says something else, and
    NotOnRecord for an unknown run."""
    run = session.get(Run, request.run, with_for_update=True)
    if run is None:
        raise NotOnRecord(f"run {request.run} is not in the store: register it first")
    incarnation = _open_incarnation(session, run, request.incarnation, request.at)
    for entry in request.entries:
        match entry:
            case StateEntry():
                _move_phase(run, request, entry)
                _move_step(run, request, entry.step)
            case IncarnationEntry():
                _fill_restore(incarnation, request, entry)
                _move_step(run, request, entry.receipt.version.step)
            case StepEntry():
                _write_once(session, step_row(request, entry))
                _move_step(run, request, entry.step)
            case CheckpointEntry():
                _write_once(session, checkpoint_row(request, entry))
            case EvaluationEntry():
                _write_once(session, evaluation_row(request, entry))
            case EventEntry():
                _write_once(session, event_row(request, entry))
                if entry.topic == names.TOPIC_EXTENDED:
                    _move_end(session, run, request, entry)
    run.updated_at = max(run.updated_at, request.at)


def _first_row(
    request: RegisterRun, at: float, code: Mapping[str, str], inputs: Mapping[str, JsonValue] | None
) -> Run:
    spec = request.spec
    return Run(
        id=request.run,
        recipe=spec.name,
        spec=spec.model_dump(mode="json"),
        spec_digest=hashlib.sha256(spec.model_dump_json().encode()).hexdigest(),
        seed=spec.seed,
        max_num_steps=spec.grpo.max_num_steps,
        code=dict[str, JsonValue](code),
        inputs=None if inputs is None else dict(inputs),
        created_at=at,
        workflow_run_id=request.workflow_run_id,
        incarnation=request.incarnation,
        phase=RunPhase.STARTING,
        phase_at=None,
        step=0,
        step_at=None,
        fault=None,
        updated_at=at,
        ended_at=None,
    )


def _open_incarnation(session: Session, run: Run, number: int, at: float) -> Incarnation:
    known = session.get(Incarnation, (run.id, number))
    if known is not None:
        # Of two records the one asked for first may arrive last, when its writer was killed with it in hand.
        known.opened_at = min(known.opened_at, at)
        return known
    if number < run.incarnation:  # it died before anything of it was recorded, and moves nothing
        return _add_incarnation(session, run.id, number, at)
    run.incarnation = number
    run.phase_at = run.step_at = None
    run.updated_at = max(run.updated_at, at)
    if run.phase.final:
        run.phase, run.fault, run.ended_at = RunPhase.STARTING, None, None
    return _add_incarnation(session, run.id, number, at)


def _add_incarnation(session: Session, run: str, number: int, at: float) -> Incarnation:
    row = Incarnation(
        run=run,
        number=number,
        opened_at=at,
        restored_at=None,
        restored_step=None,
        restored_digest=None,
        from_checkpoint=None,
        model_digest=None,
        num_parameters=None,
        parent_run=None,
        parent_incarnation=None,
    )
    session.flush()  # its run first: without relationships the ORM does not know the order
    session.add(row)
    session.flush()
    return row


def _fill_restore(row: Incarnation, request: RecordRequest, entry: IncarnationEntry) -> None:
    receipt = entry.receipt
    told = Incarnation(
        run=row.run,
        number=row.number,
        opened_at=row.opened_at,
        restored_at=request.at,
        restored_step=receipt.version.step,
        restored_digest=receipt.version.digest,
        from_checkpoint=receipt.checkpoint,
        model_digest=receipt.model_digest,
        num_parameters=receipt.num_parameters,
        parent_run=_maker(row.run, receipt.checkpoint) if receipt.parent else None,
        parent_incarnation=receipt.parent.incarnation if receipt.parent else None,
    )
    if row.restored_at is not None:
        _require_same(row, told, f"restore of run {row.run}, incarnation {row.number}")
        return
    for name in inspect(Incarnation).columns.keys():
        setattr(row, name, getattr(told, name))


def _maker(run: str, checkpoint: str | None) -> str:
    """The run that made a checkpoint, which its path tells."""
    key = parse_checkpoint_key(checkpoint) if checkpoint else None
    return key[0] if key else run


def _move_phase(run: Run, request: RecordRequest, entry: StateEntry) -> None:
    if request.incarnation != run.incarnation or run.phase.final or _before(request.at, run.phase_at):
        return
    run.phase = entry.phase
    run.phase_at = request.at
    run.fault = entry.fault.model_dump(mode="json") if entry.fault else None
    run.ended_at = request.at if entry.phase.final else None


def _move_step(run: Run, request: RecordRequest, step: int) -> None:
    if request.incarnation == run.incarnation and not _before(request.at, run.step_at):
        run.step = step
        run.step_at = request.at


def _move_end(session: Session, run: Run, request: RecordRequest, entry: EventEntry) -> None:
    """The last step is what the newest extension says."""
    session.flush()
    extensions = select(Event).where(Event.run == run.id, Event.topic == names.TOPIC_EXTENDED)
    later = session.scalar(extensions.where(Event.at > request.at).limit(1))
    if request.incarnation == run.incarnation and later is None:
        run.max_num_steps = int(str(entry.data["max_num_steps"]))


def _same_but_longer(known: RunSpec, told: RunSpec) -> bool:
    """Whether two specs differ at most in how many steps are trained: a run may be extended."""
    return told == known.model_copy(
        update={"grpo": known.grpo.model_copy(update={"max_num_steps": told.grpo.max_num_steps})}
    )


def _before(at: float, latest: float | None) -> bool:
    """Whether news of `at` comes late: records overlap and are retried, workflow time tells their order."""
    return latest is not None and at < latest


def _write_once(session: Session, row: Step | Checkpoint | Evaluation | Event) -> None:
    third = ("key", row.key) if isinstance(row, Event) else ("step", row.step)
    key = {"run": row.run, "incarnation": row.incarnation, third[0]: third[1]}
    known = session.scalar(select(type(row)).filter_by(**key))
    if known is None:
        session.add(row)
    else:
        where = ", ".join(f"{name} {value}" for name, value in key.items())
        _require_same(known, row, f"{type(row).__name__.lower()} of {where}")


def _require_same(known: Base, told: Base, what: str) -> None:
    columns = {
        name for name in set(inspect(type(told)).columns.keys()) - _NOT_CONTENT if not name.endswith(_COUNTS)
    }
    older = {name for name in columns & _LATER if getattr(known, name) is None}
    other = sorted(name for name in columns - older if getattr(known, name) != getattr(told, name))
    if other:
        raise Conflict(f"{what} is already recorded with another {', '.join(other)}")
