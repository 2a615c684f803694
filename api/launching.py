"""Launching: check everything first, start once, and leave nothing half-started behind."""

import asyncio
import secrets

from starlette.concurrency import run_in_threadpool

from api.presenting import present
from api.services import Services
from ratchet.preflight import check_runnable
from ratchet.spec import deadlines, names
from ratchet.spec.faults import Conflict, Unavailable, as_error
from ratchet.spec.loading import spec_from_mapping
from ratchet.spec.views import LaunchRequest, RunView
from ratchet.store import RunRecord

LOOK_EVERY = 0.05
FAILURE_EVERY = 10
"""The workflow is asked whether it failed at every so many looks at the store."""


async def launch(services: Services, request: LaunchRequest) -> RunView:
    """Start a run and return it once it is on record. Raises InvalidSpec, Conflict, Unavailable, or what
    made its workflow fail before that."""
    spec = spec_from_mapping(request.spec)
    await run_in_threadpool(check_runnable, spec)
    run = request.run_id or f"{spec.name}-{secrets.token_hex(3)}"
    if await run_in_threadpool(services.store.get_run, run):
        # Temporal forgets ended workflows; the store does not.
        raise Conflict(f"a run {run} exists already: choose another id, or leave it out")
    await services.workflows.start(run, spec)
    try:
        async with asyncio.timeout(deadlines.LAUNCH):
            record = await _on_record(services, run)
    except TimeoutError:
        reason = await _why_not(services, run)
        await services.workflows.terminate(run, reason)
        raise Unavailable(f"run {run} was given up: {reason}") from None
    return await present(services, record)


async def _on_record(services: Services, run: str) -> RunRecord:
    looks = 0
    while True:
        record = await run_in_threadpool(services.store.get_run, run)
        if record is not None:
            return record
        looks += 1
        if looks % FAILURE_EVERY == 0:
            fault = await services.workflows.failure(run)
            if fault is not None:
                raise as_error(fault)
        await asyncio.sleep(LOOK_EVERY)


async def _why_not(services: Services, run: str) -> str:
    """Why a run is not on record after all that time, and where to look."""
    for activity in await services.workflows.open_activities(run):
        if activity.kind == names.REGISTER_RUN and activity.failure:
            return f"it cannot be put on record ({activity.failure}): see `ratchet logs control-worker`"
    return f"no control worker took it up for {deadlines.LAUNCH:g} s: see `ratchet status`"
