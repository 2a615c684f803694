"""Lineage: ask any weights where they came from, and what became of them."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from api.access import viewer
from api.lineage import line_of, lineage_view
from api.openapi import problems
from api.services import RunDep, ServicesDep
from ratchet.spec.lineage_views import LineageView
from ratchet.spec.run_spec import LARGEST
from ratchet.store.lineage_export import dot, openlineage

router = APIRouter(
    prefix="/v1/runs/{run}/lineage", tags=["lineage"], dependencies=[viewer], responses=problems(404)
)

Direction = Annotated[
    Literal["up", "down"], Query(description="`up`: what made these weights; `down`: what was made of them.")
]
Incarnation = Annotated[
    int | None, Query(ge=1, le=LARGEST, description="Left out: the one on the path to the head.")
]
Step = Annotated[int | None, Query(ge=0, le=LARGEST, description="Left out: the head's.")]


@router.get("", summary="Where weights come from, or what became of them")
async def show_lineage(
    run: RunDep,
    services: ServicesDep,
    direction: Direction = "up",
    incarnation: Incarnation = None,
    step: Step = None,
) -> LineageView:
    line, of, at = await run_in_threadpool(
        line_of, services, run, incarnation, step, down=direction == "down"
    )
    return lineage_view(run.id, of, at, line)


@router.get(
    "/dot",
    summary="The same, for Graphviz",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": "digraph lineage {}"}}}},
)
async def show_lineage_dot(
    run: RunDep,
    services: ServicesDep,
    direction: Direction = "up",
    incarnation: Incarnation = None,
    step: Step = None,
) -> PlainTextResponse:
    line, _, _ = await run_in_threadpool(line_of, services, run, incarnation, step, down=direction == "down")
    return PlainTextResponse(dot(line))


@router.get("/openlineage", summary="The same, as OpenLineage events")
async def show_openlineage(
    run: RunDep,
    services: ServicesDep,
    direction: Direction = "up",
    incarnation: Incarnation = None,
    step: Step = None,
) -> list[dict[str, Any]]:
    line, _, _ = await run_in_threadpool(line_of, services, run, incarnation, step, down=direction == "down")
    return openlineage(line)
