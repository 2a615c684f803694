"""Steer runs: each action is an update of the run's workflow, and takes effect at most once."""

from fastapi import APIRouter

from api.presenting import present
from api.problems import RunNotFound
from api.services import RunDep, Services, ServicesDep
from ratchet.spec import names
from ratchet.spec.faults import Conflict
from ratchet.spec.views import Problem, RunView
from ratchet.store import RunRecord

router = APIRouter(
    prefix="/v1/runs/{run}",
    tags=["actions"],
    responses={code: {"model": Problem} for code in (404, 409, 503)},
)


@router.post("/pause", summary="Pause after the current step; weights stay loaded")
async def pause(run: RunDep, services: ServicesDep) -> RunView:
    return await _update(services, run, names.UPDATE_PAUSE)


@router.post("/resume", summary="Go on with a paused run")
async def resume(run: RunDep, services: ServicesDep) -> RunView:
    return await _update(services, run, names.UPDATE_RESUME)


@router.post("/stop", summary="End early, with a checkpoint of the last finished step")
async def stop(run: RunDep, services: ServicesDep) -> RunView:
    return await _update(services, run, names.UPDATE_STOP)


async def _update(services: Services, run: RunRecord, name: str) -> RunView:
    ended = f"run {run.id} has ended, so it cannot {name}: see `ratchet run show {run.id}`"
    if run.phase.final:
        raise Conflict(ended)
    try:
        status = await services.workflows.update(run.id, name)
    except RunNotFound:
        raise Conflict(ended) from None
    return await present(services, run, status)
