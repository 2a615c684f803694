"""Events as they happen, by server-sent events; a client that comes back misses none and sees none twice."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from api.access import viewer
from api.openapi import problems
from api.services import RunDep, Services, ServicesDep
from ratchet.spec import deadlines
from ratchet.spec.run_spec import LARGEST


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"type": "string", "description": "The kind of the event."},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/EventView"},
        },
    },
}
_EXAMPLE = (
    'id: 412\nevent: step\ndata: {"id":412,"run":"tiny-addition-3fa2c1","incarnation":1,"kind":"step",'
    '"at":1700000000.0,"data":{"step":12}}\n\n'
)

router = APIRouter(
    prefix="/v1",
    tags=["events"],
    dependencies=[viewer],
    default_response_class=EventStream,
    responses={
        200: {
            "description": "Server-sent events. Each has an `id` to go on from; lines of a colon only say "
            "that the stream lives.",
            "content": {"text/event-stream": {"schema": _EVENT, "example": _EXAMPLE}},
        },
        **problems(),
    },
)

LastEventId = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID",
        ge=0,
        le=LARGEST,
        description="The newest event that was seen: browsers send it by themselves when they come back.",
    ),
]
After = Annotated[
    int | None, Query(ge=0, le=LARGEST, description="Where to begin, for those who cannot send headers.")
]
Seconds = Annotated[
    float,
    Query(
        ge=0,
        le=deadlines.EVENTS_LONGEST,
        allow_inf_nan=False,
        description="The stream ends after so many seconds; 0: once everything that is there was said.",
    ),
]


@router.get("/events", summary="Follow all runs, from now on")
async def follow_all(
    services: ServicesDep,
    last: LastEventId = None,
    after: After = None,
    seconds: Seconds = deadlines.EVENTS_LONGEST,
) -> EventStream:
    begin = _begin(last, after)
    return _stream(services, None, await services.feed.newest() if begin is None else begin, seconds)


@router.get("/runs/{run}/events", summary="Follow a run, from its start", responses=problems(404))
async def follow_run(
    run: RunDep,
    services: ServicesDep,
    last: LastEventId = None,
    after: After = None,
    seconds: Seconds = deadlines.EVENTS_LONGEST,
) -> EventStream:
    return _stream(services, run.id, _begin(last, after) or 0, seconds)


def _begin(last: int | None, after: int | None) -> int | None:
    """The header wins: a client that comes back asks for the same address again."""
    return after if last is None else last


def _stream(services: Services, run: str | None, after: int, seconds: float) -> EventStream:
    return EventStream(
        services.feed.stream(run, after, seconds),
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )
