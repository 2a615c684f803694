"""Going on with a run: by an update while its workflow lives, else by starting that workflow anew.

Ended is whatever has no open workflow: failed, stopped, terminated, timed out, cancelled, or forgotten by
Temporal. What the new execution goes on from is chosen by itself, from the artifacts.
"""

import asyncio
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool

from api.beginning import LOOK_EVERY, on_record
from api.presenting import present
from api.problems import BadRequest, RunNotFound
from api.services import Services, known_run
from ratchet.artifacts.beginnings import keep_beginning, read_beginning
from ratchet.artifacts.checkpoints import checkpoint_folders, highest_incarnation
from ratchet.spec import deadlines, names
from ratchet.spec.control import ExtendRequest
from ratchet.spec.faults import Conflict, Unavailable
from ratchet.spec.loading import spec_from_mapping
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import HyperparameterChange, RunInput, RunPhase, RunState
from ratchet.spec.views import RunView
from ratchet.store import EventRecord, RunRecord


async def resume(services: Services, run: str) -> RunView:
    """Go on from a pause, or from the newest checkpoint of a run that has ended. Again: no effect.

    Raises RunNotFound, Conflict for a completed run, Unavailable, or what made the new workflow fail at once.
    """
    record = await run_in_threadpool(services.store.get_run, run)
    if record is None:
        if not await run_in_threadpool(read_beginning, services.artifacts, run):
            await known_run(services, run)  # raises, with the nearest known id
        return await _begin_again(services, run, None, None)
    if record.phase is RunPhase.COMPLETED:
        raise Conflict(
            f"run {run} has completed its {record.max_num_steps} steps: "
            f"go on with `ratchet run extend {run} --steps {2 * record.max_num_steps}`, "
            f"or start another run from it with `ratchet run fork {run} --at {record.step}`"
        )
    if not record.phase.final:
        try:
            status = await services.workflows.update(run, names.UPDATE_RESUME)
            return await present(services, record, status)
        except RunNotFound:
            pass  # it ended without a last word, or its history is gone
    return await _begin_again(services, run, record, None)


async def extend(services: Services, record: RunRecord, max_num_steps: int) -> RunView:
    """Train to another last step: at once while the run goes on, else it is resumed with it."""
    if max_num_steps <= record.step:
        raise BadRequest(
            f"max_num_steps: {max_num_steps}; it has to be more than the {record.step} steps "
            f"that run {record.id} has done"
        )
    request = ExtendRequest(max_num_steps=max_num_steps)
    if not record.phase.final:
        try:
            status = await services.workflows.update(record.id, names.UPDATE_EXTEND, request)
            return await present(services, record, status)
        except RunNotFound:
            pass
    view = await _begin_again(services, record.id, record, max_num_steps)
    if view.max_num_steps == max_num_steps:
        return view
    # Somebody else resumed it at the same moment, as it was.
    status = await services.workflows.update(record.id, names.UPDATE_EXTEND, request)
    return await present(services, await known_run(services, record.id), status)


async def _begin_again(
    services: Services, run: str, record: RunRecord | None, max_num_steps: int | None
) -> RunView:
    first = await run_in_threadpool(_beginning, services, run, record, max_num_steps)
    execution = await _start(services, first)
    if execution is None and record is None:
        raise Conflict(f"run {run} goes on, but the store knows nothing of it: `ratchet rebuild store {run}`")
    if execution is None:
        return await present(services, await _reopened(services, run))
    await run_in_threadpool(keep_beginning, services.artifacts, first)
    return await present(services, await on_record(services, run, execution))


async def _start(services: Services, first: RunInput) -> str | None:
    """The id of the new execution; None if the run goes on already, because somebody else resumed it."""
    run = first.state.run
    try:
        async with asyncio.timeout(deadlines.LAUNCH):
            while True:
                try:
                    return await services.workflows.start(first, again=True)
                except Conflict:
                    status = await services.workflows.status(run)
                    if status is not None and not status.phase.final:
                        return None
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise Unavailable(
            f"run {run} has ended, but its workflow still takes the session down: try again in a while"
        ) from None


async def _reopened(services: Services, run: str) -> RunRecord:
    """The row of a run that somebody else resumed, once it says so."""
    try:
        async with asyncio.timeout(deadlines.LAUNCH):
            while (record := await known_run(services, run)).phase.final:
                await asyncio.sleep(LOOK_EVERY)
            return record
    except TimeoutError:
        raise Unavailable(
            f"run {run} is being resumed, but is not on record yet: see `ratchet status`"
        ) from None


def _beginning(services: Services, run: str, record: RunRecord | None, max_num_steps: int | None) -> RunInput:
    """What the new execution is started with."""
    kept = read_beginning(services.artifacts, run)
    if record is not None:
        spec = extended(spec_from_mapping(record.spec), max_num_steps or record.max_num_steps)
    elif kept is not None:
        spec = kept.spec
    else:
        raise RunNotFound(f"there is no run {run}: see `ratchet run ls`")
    folders = checkpoint_folders(services.artifacts, run)
    highest = max(
        highest_incarnation(services.artifacts, run, folders),
        record.incarnation if record else 0,
        kept.state.incarnation if kept else 0,
    )
    changes = services.store.events_about(run, names.TOPIC_HYPERPARAMETERS)
    begun = max(services.store.first_trained(run), default=0)
    return RunInput(
        spec=spec,
        state=RunState(
            run=run,
            must_restore=True,
            incarnation=highest,
            # A closed session's queue and actors are never used again.
            session=highest + 1,
            forked_from=kept.state.forked_from if kept else None,
            begun=begun,
            hyperparameters=changed_values(changes) or (kept.state.hyperparameters if kept else []),
        ),
    )


def extended(spec: RunSpec, max_num_steps: int) -> RunSpec:
    """The spec with another last step."""
    return spec.model_copy(update={"grpo": spec.grpo.model_copy(update={"max_num_steps": max_num_steps})})


def changed_values(events: Sequence[EventRecord]) -> list[HyperparameterChange]:
    """What the workflow wrote down of hyperparameters that were changed on the way."""
    return [HyperparameterChange.model_validate(event.data) for event in events]
