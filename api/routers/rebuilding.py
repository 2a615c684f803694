"""Rebuild projections: whatever can be had again from histories, manifests and journal."""

from fastapi import APIRouter

from api.access import admin
from api.openapi import problems
from api.rebuilding import look_at_journal, rebuild_store
from api.services import RunDep, RunIdPath, ServicesDep
from ratchet.spec.views import RebuildReport

router = APIRouter(
    prefix="/v1/runs/{run}/rebuild", tags=["rebuilding"], dependencies=[admin], responses=problems(404, 409)
)


@router.post("/store", summary="Write the run's rows again, from history and manifests")
async def store(run: RunIdPath, services: ServicesDep) -> RebuildReport:
    """Also for a run that the store has forgotten. Rows that are there stay."""
    return await rebuild_store(services, run)


@router.post("/data-plane", summary="Whether the journal holds what the data plane is refilled with")
async def data_plane(run: RunDep, services: ServicesDep) -> RebuildReport:
    """A run refills its data plane by itself; this changes nothing."""
    return await look_at_journal(services, run.id, "data-plane")


@router.post("/buffer", summary="Whether the journal holds what the replay buffer is refilled with")
async def buffer(run: RunDep, services: ServicesDep) -> RebuildReport:
    """The buffer of a synchronous run is its data plane; this changes nothing."""
    return await look_at_journal(services, run.id, "buffer")
