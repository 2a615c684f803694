"""Launch runs, list and show them."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response, status
from starlette.concurrency import run_in_threadpool

from api.access import CallerDep, operator, viewer
from api.cursors import CursorQuery, cursor_after, place_of, unknown
from api.launching import launch
from api.openapi import problems
from api.presenting import present, summarize
from api.services import RunDep, ServicesDep
from ratchet.spec.faults import Conflict
from ratchet.spec.state import RunPhase
from ratchet.spec.views import RUN_ID_PATTERN, LaunchRequest, RunList, RunView
from ratchet.store.idempotency import LONGEST

MAX_PAGE = 200
NAME_PATTERN = "^[a-z0-9][a-z0-9-]{0,39}$"

router = APIRouter(prefix="/v1/runs", tags=["runs"])

IdempotencyKeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=LONGEST,
        pattern=r"^[\x21-\x7e]+$",
        description="A name for this launch, like a UUID. The same key and body are the same run, however "
        "often they are sent; the same key with another body is refused.",
        examples=["0d0fb8f6-3c3b-4f0e-9a55-5a7f5a4a3d0e"],
    ),
]


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    summary="Launch a run",
    dependencies=[operator],
    responses={
        201: {
            "headers": {
                "Location": {"description": "The run.", "schema": {"type": "string"}},
                "Idempotency-Replayed": {
                    "description": "`true`: the key stood for this run already.",
                    "schema": {"type": "string"},
                },
            }
        },
        **problems(409, 429),
    },
)
async def launch_run(
    request: LaunchRequest,
    services: ServicesDep,
    caller: CallerDep,
    response: Response,
    key: IdempotencyKeyHeader = None,
) -> RunView:
    """Check the whole spec, start the run, and answer once it is on record."""
    launched = await launch(services, request, key, caller.who)
    response.headers["Location"] = launched.view.links.self
    if launched.repeated:
        response.headers["Idempotency-Replayed"] = "true"
    return launched.view


@router.get("", summary="List runs, newest first", dependencies=[viewer], responses=problems())
async def list_runs(
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: CursorQuery = None,
    phase: Annotated[list[RunPhase] | None, Query(description="Only runs in one of these phases.")] = None,
    name: Annotated[str | None, Query(description="Only runs of this recipe.", pattern=NAME_PATTERN)] = None,
) -> RunList:
    before = place_of(cursor) if cursor is not None else None
    if cursor is not None and before is not None and not re.fullmatch(RUN_ID_PATTERN, before):
        raise unknown(cursor)
    try:
        records = await run_in_threadpool(
            services.store.list_runs, limit=limit + 1, before=before, phases=phase or (), recipe=name
        )
    except Conflict:
        raise unknown(str(cursor)) from None
    page = records[:limit]
    more = len(records) > limit
    return RunList(
        runs=await summarize(services, page), next_cursor=cursor_after(page[-1].id) if more else None
    )


@router.get("/{run}", summary="Show a run", dependencies=[viewer], responses=problems(404))
async def show_run(run: RunDep, services: ServicesDep) -> RunView:
    """What the store knows, and what the workflow says it is doing right now."""
    return await present(services, run)
