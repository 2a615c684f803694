"""Runs as views: what the store has on record, corrected by what their workflows say right now."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from starlette.concurrency import run_in_threadpool

from api.doing import in_words
from api.problems import RunNotFound
from api.services import Services
from ratchet.spec.faults import Fault, FaultKind, Incident, RatchetError
from ratchet.spec.state import RunPhase, RunStatus
from ratchet.spec.views import (
    CheckpointView,
    EvaluationView,
    IncidentView,
    RunLinks,
    RunSummary,
    RunView,
    StepView,
)
from ratchet.store import CheckpointRecord, EvaluationRecord, EventRecord, RunRecord, StepRecord

SHOWN_INCIDENTS = 5
_TROUBLED = {RunPhase.FAILED, RunPhase.RECOVERING, RunPhase.STALLED}
"""Phases that a fault explains."""


async def present(services: Services, record: RunRecord, status: RunStatus | None = None) -> RunView:
    """Everything about a run. `status`: what its workflow just said, if it was asked already."""
    ended: Fault | None = None
    doing: list[str] = []
    if not record.phase.final:
        status, activities = await asyncio.gather(
            _said(services, record, status), services.workflows.open_activities(record.id)
        )
        doing = in_words(status.doing if status else None, activities)
        if status is None:
            ended = await _ended(services, record)
    return await run_in_threadpool(_assemble, services, record, status, ended, doing)


async def _said(services: Services, record: RunRecord, status: RunStatus | None) -> RunStatus | None:
    return status or await services.workflows.status(record.id)


async def summarize(services: Services, records: Sequence[RunRecord]) -> list[RunSummary]:
    """Runs for a list. A workflow that broke without a last word is shown as what it is: failed."""
    faults = await asyncio.gather(*(_ended(services, record) for record in records))
    return [_summary(services, record, None, fault) for record, fault in zip(records, faults, strict=True)]


def present_step(record: StepRecord, *, retrained: bool = False) -> StepView:
    return StepView(
        step=record.step,
        incarnation=record.incarnation,
        version=f"{record.incarnation}.{record.step}.{record.version_digest[:8]}",
        started_at=as_time(record.started_at),
        finished_at=as_time(record.finished_at),
        reward_mean=record.reward_mean,
        accuracy=record.accuracy,
        length_mean=record.length_mean,
        num_tokens=record.num_tokens,
        num_groups=record.num_groups,
        replayed_groups=record.replayed_groups,
        retrained=retrained,
        zero_advantage_groups=record.zero_advantage_groups,
        rollout_s=record.rollout_engine_s,
        train_s=record.train_engine_s,
        refit_s=record.refit_engine_s,
        metrics=record.metrics,
    )


def present_incident(record: EventRecord) -> IncidentView:
    told = Incident.model_validate(record.data)
    return IncidentView(
        key=record.key,
        incarnation=record.incarnation,
        at=as_time(told.detected_at),
        lost=told.lost,
        cause=told.cause,
        done=told.done,
        seconds=told.seconds,
    )


async def _ended(services: Services, record: RunRecord) -> Fault | None:
    """Why a run that is open on record has ended all the same: only Temporal knows (terminated, timed out,
    its last record never written), or has forgotten."""
    if record.phase.final:
        return None
    try:
        return await services.workflows.failure(record.id)
    except RunNotFound:
        return Fault(
            kind=FaultKind.UNAVAILABLE,
            message="Temporal has no history of it any more: resume it from its newest checkpoint",
        )
    except RatchetError:
        return None  # nobody to ask: the record stands


def _assemble(
    services: Services, record: RunRecord, status: RunStatus | None, ended: Fault | None, doing: list[str]
) -> RunView:
    store = services.store
    steps = store.steps_on_path(record.id, since=max(record.step - 1, 0))
    checkpoints = store.checkpoints_on_path(record.id)
    return RunView(
        **dict(_summary(services, record, status, ended)),
        spec=record.spec,
        last_step=present_step(steps[-1]) if steps else None,
        evaluations=[present_evaluation(seen) for seen in store.evaluations_on_path(record.id)],
        last_checkpoint=present_checkpoint(checkpoints[-1]) if checkpoints else None,
        live=status is not None,
        doing=doing,
        stop_requested=status.stop_requested if status else False,
        incidents=[present_incident(event) for event in store.incidents(record.id, last=SHOWN_INCIDENTS)],
    )


def _summary(
    services: Services, record: RunRecord, status: RunStatus | None, ended: Fault | None
) -> RunSummary:
    # An end counts once it is on record, with its reason: the workflow knows of it a moment earlier.
    phase = status.phase if status and not status.phase.final else record.phase
    return RunSummary(
        id=record.id,
        name=record.recipe,
        phase=RunPhase.FAILED if ended else phase,
        step=status.step if status else record.step,
        max_num_steps=status.max_num_steps if status else record.max_num_steps,
        incarnation=status.incarnation if status else record.incarnation,
        created_at=as_time(record.created_at),
        updated_at=as_time(record.updated_at),
        ended_at=as_time(record.ended_at) if record.ended_at else None,
        fault=ended or (record.fault if phase in _TROUBLED else None),
        links=RunLinks(
            self=f"/v1/runs/{record.id}",
            steps=f"/v1/runs/{record.id}/steps",
            temporal=services.workflows.link(record.id),
        ),
    )


def present_evaluation(record: EvaluationRecord, *, on_path: bool = True) -> EvaluationView:
    return EvaluationView(
        step=record.step,
        incarnation=record.incarnation,
        accuracy=record.accuracy,
        reward_mean=record.reward_mean,
        num_problems=record.num_problems,
        on_path=on_path,
    )


def present_checkpoint(record: CheckpointRecord, *, on_path: bool = True) -> CheckpointView:
    return CheckpointView(
        step=record.step,
        incarnation=record.incarnation,
        path=record.path,
        digest=record.digest,
        num_bytes=record.num_bytes,
        on_path=on_path,
    )


def as_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
