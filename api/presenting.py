"""Runs as views: what the store has on record, corrected by what their workflows say right now."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from starlette.concurrency import run_in_threadpool

from api.doing import in_words
from api.problems import RunNotFound
from api.services import Services
from ratchet.spec import names
from ratchet.spec.admission import Place
from ratchet.spec.faults import Fault, FaultKind, Incident, RatchetError
from ratchet.spec.state import RunPhase, RunStatus
from ratchet.spec.views import (
    CheckpointView,
    EvaluationView,
    IncidentView,
    QueueView,
    RunLinks,
    RunSummary,
    RunView,
    StepView,
)
from ratchet.store import CheckpointRecord, EvaluationRecord, EventRecord, RunRecord, StepRecord
from ratchet.store.admission import Admissions, Queue
from ratchet.store.standing import Standing, Standings

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
        if record.phase is RunPhase.QUEUED:  # what it waits for is told by the queue
            activities = [one for one in activities if one.kind != names.ADMIT or one.waiting]
        doing = in_words(status.doing if status else None, activities)
        if status is None:
            ended = await _ended(services, record)
    return await run_in_threadpool(_assemble, services, record, status, ended, doing)


async def _said(services: Services, record: RunRecord, status: RunStatus | None) -> RunStatus | None:
    return status or await services.workflows.status(record.id)


async def summarize(services: Services, records: Sequence[RunRecord]) -> list[RunSummary]:
    """Runs for a list. A workflow that broke without a last word is shown as what it is: failed."""
    standings, queue, faults = await asyncio.gather(
        run_in_threadpool(Standings(services.store).of, records, now=time.time()),
        run_in_threadpool(_queue, services, records),
        asyncio.gather(*(_ended(services, record) for record in records)),
    )
    return [
        _summary(services, record, None, fault, standings[record.id], queue)
        for record, fault in zip(records, faults, strict=True)
    ]


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
    seen = services.store.glance(record, incidents=SHOWN_INCIDENTS)
    standing = Standings(services.store).of([record], now=time.time())[record.id]
    summary = _summary(services, record, status, ended, standing, _queue(services, [record]))
    return RunView(
        **dict(summary),
        spec=record.spec,
        last_step=present_step(seen.last_step) if seen.last_step else None,
        evaluations=[present_evaluation(one) for one in seen.evaluations],
        last_checkpoint=present_checkpoint(seen.last_checkpoint) if seen.last_checkpoint else None,
        live=status is not None,
        doing=[summary.queue.words, *doing] if summary.queue else doing,
        stop_requested=status.stop_requested if status else False,
        incidents=[present_incident(event) for event in seen.events],
    )


def _summary(
    services: Services,
    record: RunRecord,
    status: RunStatus | None,
    ended: Fault | None,
    standing: Standing,
    queue: Queue | None,
) -> RunSummary:
    # An end counts once it is on record, with its reason: the workflow knows of it a moment earlier.
    phase = status.phase if status and not status.phase.final else record.phase
    place = queue.place(record.id) if queue and phase is RunPhase.QUEUED and not ended else None
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
        reward_mean=standing.reward_mean,
        ettr=standing.ettr,
        last_incident=present_incident(standing.incident) if standing.incident else None,
        queue=present_place(place) if place else None,
        links=RunLinks(
            self=f"/v1/runs/{record.id}",
            steps=f"/v1/runs/{record.id}/steps",
            temporal=services.workflows.link(record.id),
            ray=services.workflows.ray_dashboard(),
        ),
    )


def _queue(services: Services, records: Sequence[RunRecord]) -> Queue | None:
    """The queue for sessions, if one of these runs waits in it."""
    if any(record.phase is RunPhase.QUEUED for record in records):
        return Admissions(services.store).queue()
    return None


def present_place(place: Place) -> QueueView:
    return QueueView(
        words=str(place),
        ahead=list(place.ahead),
        num_ahead=place.num_ahead,
        holders=list(place.holders),
        num_holders=place.num_holders,
        priority=place.priority,
        since=as_time(place.since),
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
