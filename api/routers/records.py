"""What is on record of a run: steps, metrics, checkpoints, evaluations, incidents."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from api.access import viewer
from api.cursors import CursorQuery, cursor_after, number_of
from api.metrics import metric_list
from api.openapi import problems
from api.presenting import present_checkpoint, present_evaluation, present_incident, present_step
from api.services import RunDep, ServicesDep
from ratchet.spec.run_spec import LARGEST
from ratchet.spec.views import CheckpointList, EvaluationList, IncidentList, MetricList, StepList
from ratchet.store import CheckpointRecord, EvaluationRecord

MAX_STEPS = 1000
MAX_POINTS = 10_000

router = APIRouter(prefix="/v1/runs/{run}", tags=["records"], dependencies=[viewer], responses=problems(404))

Since = Annotated[int, Query(ge=0, le=LARGEST, description="Only steps after this one.")]


@router.get("/steps", summary="Steps on the path to the run's head")
async def list_steps(
    run: RunDep,
    services: ServicesDep,
    since: Since = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = MAX_STEPS,
    cursor: CursorQuery = None,
) -> StepList:
    after = max(since, number_of(cursor) or 0)
    records = await run_in_threadpool(services.store.steps_on_path, run.id, since=after)
    first = await run_in_threadpool(services.store.first_trained, run.id, since=after)
    page = records[:limit]
    return StepList(
        run=run.id,
        steps=[present_step(record, retrained=first[record.step] < record.incarnation) for record in page],
        next_cursor=cursor_after(page[-1].step) if len(records) > limit else None,
    )


@router.get("/metrics", summary="Measurements of the steps on the path to the run's head, as columns")
async def list_metrics(
    run: RunDep,
    services: ServicesDep,
    since: Since = 0,
    name: Annotated[list[str] | None, Query(description="Only these metrics; none: all.")] = None,
    points: Annotated[
        int, Query(ge=1, le=MAX_POINTS, description="Of longer runs, every so many steps are left out.")
    ] = 1000,
) -> MetricList:
    steps = await run_in_threadpool(services.store.steps_on_path, run.id, since=since)
    return metric_list(run.id, steps, name or (), points)


@router.get("/checkpoints", summary="Checkpoints of every incarnation")
async def list_checkpoints(run: RunDep, services: ServicesDep) -> CheckpointList:
    records = await run_in_threadpool(services.store.checkpoints, run.id)
    path = await run_in_threadpool(services.store.path, run.id)
    shown = [present_checkpoint(record, on_path=_leads(path, record)) for record in records]
    return CheckpointList(run=run.id, checkpoints=shown)


@router.get("/evaluations", summary="Evaluations of every incarnation")
async def list_evaluations(run: RunDep, services: ServicesDep) -> EvaluationList:
    records = await run_in_threadpool(services.store.evaluations, run.id)
    path = await run_in_threadpool(services.store.path, run.id)
    shown = [present_evaluation(record, on_path=_leads(path, record)) for record in records]
    return EvaluationList(run=run.id, evaluations=shown)


@router.get("/incidents", summary="What was lost on the way, and what was done about it")
async def list_incidents(run: RunDep, services: ServicesDep) -> IncidentList:
    records = await run_in_threadpool(services.store.incidents, run.id)
    return IncidentList(run=run.id, incidents=[present_incident(record) for record in records])


def _leads(path: Mapping[int, int | None], record: CheckpointRecord | EvaluationRecord) -> bool:
    """Whether it is of weights that led to the head."""
    if record.incarnation not in path:
        return False
    last = path[record.incarnation]
    return last is None or record.step <= last
