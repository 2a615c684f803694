"""Launching: check everything first, start once, and leave nothing half-started behind."""

import secrets

from starlette.concurrency import run_in_threadpool

from api.beginning import begin
from api.presenting import present
from api.services import Services
from ratchet.artifacts.beginnings import BEGINNING_NAME, read_beginning
from ratchet.preflight import check_runnable
from ratchet.spec.faults import Conflict
from ratchet.spec.loading import spec_from_mapping
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunInput, RunState
from ratchet.spec.views import LaunchRequest, RunView


async def launch(services: Services, request: LaunchRequest) -> RunView:
    """Start a run and return it once it is on record. Raises InvalidSpec, Conflict, Unavailable, or what
    made its workflow fail before that."""
    spec = spec_from_mapping(request.spec)
    await run_in_threadpool(check_runnable, spec)
    run = await new_id(services, spec, request.run_id)
    record = await begin(services, RunInput(spec=spec, state=RunState(run=run)))
    return await present(services, record)


async def new_id(services: Services, spec: RunSpec, wanted: str | None) -> str:
    """The id of a new run: `wanted`, or one made up. Raises Conflict if something of such a run exists:
    Temporal forgets ended workflows; store and artifacts do not."""
    run = wanted or f"{spec.name}-{secrets.token_hex(3)}"
    if await run_in_threadpool(services.store.get_run, run):
        raise Conflict(f"a run {run} exists already: choose another id, or leave it out")
    there = await run_in_threadpool(services.artifacts.list, f"runs/{run}")
    if set(there) - {BEGINNING_NAME}:  # that alone: it was asked for before, and may be asked for again
        known = await run_in_threadpool(read_beginning, services.artifacts, run)
        hint = f", or go on with that run by `ratchet run resume {run}`" if known else ""
        raise Conflict(f"there are artifacts of a run {run} already: choose another id{hint}")
    return run
