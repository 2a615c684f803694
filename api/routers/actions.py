"""Steer runs: most actions are an update of the run's workflow, and take effect at most once."""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Response, status
from pydantic import BaseModel

from api import forking, resuming
from api.access import operator
from api.hyperparameters import check_values
from api.openapi import problems
from api.presenting import present
from api.problems import RunNotFound
from api.services import RunDep, RunIdPath, Services, ServicesDep
from ratchet.spec import names
from ratchet.spec.control import ExtendRequest, HyperparametersRequest
from ratchet.spec.faults import Conflict
from ratchet.spec.views import ForkRequest, RunView
from ratchet.store import RunRecord

Handler = TypeVar("Handler", bound=Callable[..., Any])

router = APIRouter(
    prefix="/v1/runs/{run}", tags=["actions"], dependencies=[operator], responses=problems(404, 409)
)

_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "description": "It is taken up; the run tells when it is done.",
        "headers": {"Location": {"description": "The run.", "schema": {"type": "string"}}},
    }
}


def _accepted(path: str, summary: str) -> Callable[[Handler], Handler]:
    """A route whose effect comes later: after the step that the run is in."""
    return router.post(path, status_code=status.HTTP_202_ACCEPTED, summary=summary, responses=_ACCEPTED)


@_accepted("/pause", "Pause after the current step; weights stay loaded")
async def pause(run: RunDep, services: ServicesDep, response: Response) -> RunView:
    return _located(response, await _update(services, run, names.UPDATE_PAUSE))


@_accepted("/resume", "Go on with a run that is paused or has ended")
async def resume(run: RunIdPath, services: ServicesDep, response: Response) -> RunView:
    """What failed, was stopped, terminated, timed out, or is forgotten by Temporal goes on from its newest
    checkpoint, under the same id."""
    return _located(response, await resuming.resume(services, run))


@_accepted("/stop", "End early, with a checkpoint of the last finished step")
async def stop(run: RunDep, services: ServicesDep, response: Response) -> RunView:
    return _located(response, await _update(services, run, names.UPDATE_STOP))


@_accepted("/checkpoint", "Checkpoint after the current step, whatever the spec says")
async def checkpoint(run: RunDep, services: ServicesDep, response: Response) -> RunView:
    return _located(response, await _update(services, run, names.UPDATE_CHECKPOINT))


@_accepted("/extend", "Train to another last step")
async def extend(run: RunDep, request: ExtendRequest, services: ServicesDep, response: Response) -> RunView:
    """A run that has ended is resumed with it."""
    return _located(response, await resuming.extend(services, run, request.max_num_steps))


@_accepted("/hyperparameters", "Give hyperparameters new values from the next step on")
async def set_hyperparameters(
    run: RunDep, request: HyperparametersRequest, services: ServicesDep, response: Response
) -> RunView:
    check_values(run, request.values)
    return _located(response, await _update(services, run, names.UPDATE_HYPERPARAMETERS, request))


@router.post(
    "/fork",
    status_code=status.HTTP_201_CREATED,
    summary="Start a new run from a checkpoint of this one",
    responses={201: {"headers": {"Location": {"description": "The new run.", "schema": {"type": "string"}}}}},
)
async def fork(run: RunDep, request: ForkRequest, services: ServicesDep, response: Response) -> RunView:
    """Weights, optimizer, data cursor and RNG go on from there; model and seed stay the parent's."""
    return _located(response, await forking.fork(services, run, request))


def _located(response: Response, view: RunView) -> RunView:
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
