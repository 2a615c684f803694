"""Starting a workflow: what it begins with is kept with its artifacts, and it counts once it is on record."""

import asyncio
import itertools
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from api.services import Services
from ratchet.artifacts.beginnings import claim_beginning, forget_beginning
from ratchet.artifacts.manifest import ManifestMissing
from ratchet.artifacts.pins import pin, unpin
from ratchet.spec import deadlines, names
from ratchet.spec.faults import Conflict, RatchetError, Unavailable, as_error
from ratchet.spec.state import RunInput
from ratchet.store import RunRecord

LOOK_EVERY = 0.05
LONGEST_PAUSE = 0.5
FAILURE_EVERY = 5
"""The workflow is asked whether it failed at every so many looks at the store."""


async def begin(services: Services, first: RunInput) -> RunRecord:
    """Start a new run; its row, once it is there. Raises Conflict, Unavailable, or what made its workflow
    fail before that.

    What it needs is there before it starts: what it began with, and the checkpoint it grows from. Both are
    taken back once it is known that it will not run; one that another request started, or that was started
    though nobody answered, keeps them.
    """
    await _prepare(services, first)
    return await _recorded(services, first, await services.workflows.start(first))


async def begin_or_join(services: Services, first: RunInput) -> RunRecord:
    """The same for a run that somebody else may be starting at this moment: one of them starts it."""
    await _prepare(services, first)
    try:
        execution = await services.workflows.start(first)
    except Conflict:
        return await _joined(services, first.state.run)
    return await _recorded(services, first, execution)


async def _prepare(services: Services, first: RunInput) -> None:
    await services.workflows.ping(deadlines.UPDATE)  # first: without Temporal nothing is written at all
    await run_in_threadpool(claim_beginning, services.artifacts, first)
    await run_in_threadpool(_pin_origin, services, first)


async def _recorded(services: Services, first: RunInput, execution: str) -> RunRecord:
    run = first.state.run
    try:
        return await on_record(services, run, execution)
    except RatchetError:
        if await _never_ran(services, run):
            await run_in_threadpool(_take_back, services, first)
        raise


async def _joined(services: Services, run: str) -> RunRecord:
    try:
        async with asyncio.timeout(deadlines.LAUNCH):
            return await _look_for(services, run, None)
    except TimeoutError:
        raise Unavailable(f"run {run} is being started, but is not on record yet: try again") from None


def _pin_origin(services: Services, first: RunInput) -> None:
    """Keep the checkpoint that a fork starts from. Raises Conflict if it is gone."""
    origin = first.state.forked_from
    if origin is None:
        return
    try:
        pin(Path(origin.checkpoint.path), first.state.run)
    except ManifestMissing:
        forget_beginning(services.artifacts, first.state.run)
        step = origin.checkpoint.version.step
        raise Conflict(f"the checkpoint of step {step} of run {origin.run} was just deleted") from None


def _take_back(services: Services, first: RunInput) -> None:
    forget_beginning(services.artifacts, first.state.run)
    if first.state.forked_from is not None:
        unpin(Path(first.state.forked_from.checkpoint.path), first.state.run)


async def _never_ran(services: Services, run: str) -> bool:
    """Whether that much is certain."""
    try:
        ended = await services.workflows.failure(run) is not None
        return ended and await run_in_threadpool(services.store.get_run, run) is None
    except RatchetError:
        return False


async def on_record(services: Services, run: str, execution: str) -> RunRecord:
    """The run's row, once it belongs to this execution. Raises what made the workflow fail before that, and
    Unavailable after giving it up."""
    try:
        async with asyncio.timeout(deadlines.LAUNCH):
            return await _look_for(services, run, execution)
    except TimeoutError:
        reason = await _why_not(services, run)
        await services.workflows.terminate(run, execution, reason)
        raise Unavailable(f"run {run} was given up: {reason}") from None


async def _look_for(services: Services, run: str, execution: str | None) -> RunRecord:
    pause = LOOK_EVERY
    for looks in itertools.count(1):
        record = await run_in_threadpool(services.store.get_run, run)
        if record is not None and execution in (None, record.workflow_run_id):
            return record
        if looks % FAILURE_EVERY == 0:
            fault = await services.workflows.failure(run)
            if fault is not None:
                raise as_error(fault)
        await asyncio.sleep(pause)
        pause = min(1.3 * pause, LONGEST_PAUSE)
    raise AssertionError("unreachable")


async def _why_not(services: Services, run: str) -> str:
    """Why a run is not on record after all that time, and where to look."""
    for activity in await services.workflows.open_activities(run):
        if activity.kind == names.REGISTER_RUN and activity.failure:
            return f"it cannot be put on record ({activity.failure}): see `ratchet logs control-worker`"
    return f"no control worker took it up for {deadlines.LAUNCH:g} s: see `ratchet status`"
