"""`/metrics`: what Prometheus scrapes."""

from typing import Any

from fastapi import APIRouter, Response
from starlette.concurrency import run_in_threadpool

from api.metrics_page import MEDIA_TYPE
from api.openapi import problems
from api.services import ServicesDep

router = APIRouter(tags=["health"])

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Metrics in Prometheus' text format.",
        "content": {
            "text/plain": {
                "schema": {"type": "string"},
                "example": '# TYPE ratchet_runs gauge\nratchet_runs{phase="running"} 3.0\n',
            }
        },
    }
}


@router.get(
    "/metrics",
    summary="Runs in numbers, for Prometheus",
    response_class=Response,
    responses=_TEXT | problems(),
)
async def metrics(services: ServicesDep) -> Response:
    text = await run_in_threadpool(services.metrics_page.text)
    return Response(text, media_type=MEDIA_TYPE)
