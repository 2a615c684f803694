"""Steer runs: most actions are an update of the run's workflow, and take effect at most once."""

from fastapi import APIRouter, Response, status
from pydantic import BaseModel

from api import forking, resuming
from api.hyperparameters import check_values
from api.presenting import present
from api.problems import RunNotFound
from api.services import RunDep, RunIdPath, Services, ServicesDep
from ratchet.spec import names
from ratchet.spec.control import ExtendRequest, HyperparametersRequest
from ratchet.spec.faults import Conflict
from ratchet.spec.views import ForkRequest, Problem, RunView
from ratchet.store import RunRecord

router = APIRouter(
    prefix="/v1/runs/{run}",
    tags=["actions"],
    responses={code: {"model": Problem} for code in (404, 409, 422, 503)},
)


@router.post("/pause", summary="Pause after the current step; weights stay loaded")
async def pause(run: RunDep, services: ServicesDep) -> RunView:
    return await _update(services, run, names.UPDATE_PAUSE)


@router.post(
    "/resume", summary="Go on with a run that is paused or has ended", responses={500: {"model": Problem}}
)
async def resume(run: RunIdPath, services: ServicesDep) -> RunView:
    """What failed, was stopped, terminated, timed out, or is forgotten by Temporal goes on from its newest
    checkpoint, under the same id."""
    return await resuming.resume(services, run)


@router.post("/stop", summary="End early, with a checkpoint of the last finished step")
async def stop(run: RunDep, services: ServicesDep) -> RunView:
    return await _update(services, run, names.UPDATE_STOP)


@router.post("/checkpoint", summary="Checkpoint after the current step, whatever the spec says")
async def checkpoint(run: RunDep, services: ServicesDep) -> RunView:
    return await _update(services, run, names.UPDATE_CHECKPOINT)


@router.post("/extend", summary="Train to another last step", responses={500: {"model": Problem}})
async def extend(run: RunDep, request: ExtendRequest, services: ServicesDep) -> RunView:
    """A run that has ended is resumed with it."""
    return await resuming.extend(services, run, request.max_num_steps)


@router.post("/hyperparameters", summary="Give hyperparameters new values from the next step on")
async def set_hyperparameters(run: RunDep, request: HyperparametersRequest, services: ServicesDep) -> RunView:
    check_values(run, request.values)
    return await _update(services, run, names.UPDATE_HYPERPARAMETERS, request)


@router.post(
    "/fork",
    status_code=status.HTTP_201_CREATED,
    summary="Start a new run from a checkpoint of this one",
    responses={500: {"model": Problem}},
)
async def fork(run: RunDep, request: ForkRequest, services: ServicesDep, response: Response) -> RunView:
    """Weights, optimizer, data cursor and RNG go on from there; model and seed stay the parent's."""
    view = await forking.fork(services, run, request)
    response.headers["Location"] = view.links.self
    return view


async def _update(services: Services, run: RunRecord, name: str, request: BaseModel | None = None) -> RunView:
    ended = f"run {run.id} has ended: go on with it by `ratchet run resume {run.id}`"
    if run.phase.final:
        raise Conflict(ended)
    try:
        said = await services.workflows.update(run.id, name, request)
    except RunNotFound:
        raise Conflict(ended) from None
    return await present(services, run, said)
