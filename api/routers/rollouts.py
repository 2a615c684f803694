"""Rollouts: what the policy was asked, what it answered, and what that was worth."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.concurrency import run_in_threadpool

from api.access import viewer
from api.cursors import CursorQuery, number_of
from api.openapi import problems
from api.rollouts import rollout_page, rollout_record
from api.services import RunDep, ServicesDep
from ratchet.spec.rollout_views import RolloutPage, RolloutRecord
from ratchet.spec.run_spec import LARGEST

MAX_PAGE = 100

router = APIRouter(
    prefix="/v1/runs/{run}/rollouts", tags=["rollouts"], dependencies=[viewer], responses=problems(404)
)


@router.get("", summary="Prompts and responses in the run's journal")
async def list_rollouts(
    run: RunDep,
    services: ServicesDep,
    step: Annotated[
        int | None, Query(ge=1, le=LARGEST, description="Only what this step was trained on.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    cursor: CursorQuery = None,
) -> RolloutPage:
    """The journal keeps what the oldest restorable checkpoint needs, and what retention leaves."""
    return await run_in_threadpool(rollout_page, services, run, step, number_of(cursor), limit)


@router.get("/{key}", summary="One prompt and its responses, token by token")
async def show_rollout(
    run: RunDep,
    key: Annotated[int, Path(ge=0, le=LARGEST, description="The position of its prompt.", examples=[196])],
    services: ServicesDep,
) -> RolloutRecord:
    return await run_in_threadpool(rollout_record, services, run, key)
