"""Launch runs and look at them."""

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Query, Response, status
from starlette.concurrency import run_in_threadpool

from api.launching import launch
from api.presenting import present, present_incident, present_step, summarize
from api.problems import BadRequest
from api.services import RunDep, ServicesDep
from ratchet.spec.state import RunPhase
from ratchet.spec.views import IncidentList, LaunchRequest, Problem, RunList, RunView, StepList

MAX_PAGE = 200

router = APIRouter(
    prefix="/v1/runs",
    tags=["runs"],
    responses={code: {"model": Problem} for code in (404, 422, 503)},
)


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    summary="Launch a run",
    responses={409: {"model": Problem}, 500: {"model": Problem}},
)
async def launch_run(request: LaunchRequest, services: ServicesDep, response: Response) -> RunView:
    """Check the whole spec, start the run, and answer once it is on record."""
    view = await launch(services, request)
    response.headers["Location"] = view.links.self
    return view


@router.get("", summary="List runs, newest first")
async def list_runs(
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
    phase: Annotated[list[RunPhase] | None, Query(description="Only runs in one of these phases.")] = None,
) -> RunList:
    before = _run_of(cursor) if cursor else None
    records = await run_in_threadpool(
        services.store.list_runs, limit=limit + 1, before=before, phases=phase or ()
    )
    page = records[:limit]
    more = len(records) > limit
    return RunList(
        runs=await summarize(services, page), next_cursor=_cursor_after(page[-1].id) if more else None
    )


@router.get("/{run}", summary="Show a run")
async def show_run(run: RunDep, services: ServicesDep) -> RunView:
    """What the store knows, and what the workflow says it is doing right now."""
    return await present(services, run)


@router.get("/{run}/steps", summary="Steps on the path to the run's head")
async def list_steps(
    run: RunDep,
    services: ServicesDep,
    since: Annotated[int, Query(ge=0, description="Only steps after this one.")] = 0,
) -> StepList:
    records = await run_in_threadpool(services.store.steps_on_path, run.id, since=since)
    first = await run_in_threadpool(services.store.first_trained, run.id, since=since)
    steps = [present_step(record, retrained=first[record.step] < record.incarnation) for record in records]
    return StepList(run=run.id, steps=steps)


@router.get("/{run}/incidents", summary="What was lost on the way, and what was done about it")
async def list_incidents(run: RunDep, services: ServicesDep) -> IncidentList:
    records = await run_in_threadpool(services.store.incidents, run.id)
    return IncidentList(run=run.id, incidents=[present_incident(record) for record in records])


def _cursor_after(run: str) -> str:
    return base64.urlsafe_b64encode(run.encode()).decode()


def _run_of(cursor: str) -> str:
    try:
        return base64.urlsafe_b64decode(cursor.encode()).decode()
    except (binascii.Error, ValueError):
        raise BadRequest(
            f"cursor {cursor!r} is not one this API gave: leave it out for the first page"
        ) from None
