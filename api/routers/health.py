"""`/healthz`: the process lives. `/readyz`: what it needs answers."""

import asyncio

from fastapi import APIRouter, Response, status
from pydantic import BaseModel, Field

from api.services import ServicesDep
from ratchet.spec.faults import Unavailable

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str = Field(default="ok", examples=["ok"])


class Readiness(BaseModel):
    ready: bool = Field(examples=[True])
    parts: dict[str, str] = Field(examples=[{"store": "ok", "temporal": "ok"}])
    """By part: `ok`, or what is wrong with it."""


@router.get("/healthz", summary="Whether the API lives")
async def healthz() -> Health:
    return Health()


@router.get(
    "/readyz",
    summary="Whether store and Temporal answer",
    responses={503: {"model": Readiness, "description": "Something does not answer."}},
)
async def readyz(services: ServicesDep, response: Response) -> Readiness:
    parts = {"store": "ok", "temporal": "ok"}
    try:
        await asyncio.to_thread(services.store.list_runs, limit=1)
    except Unavailable as error:
        parts["store"] = str(error)
    try:
        await services.workflows.ping()
    except Unavailable as error:
        parts["temporal"] = str(error)
    ready = set(parts.values()) == {"ok"}
    if not ready:
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    return Readiness(ready=ready, parts=parts)
