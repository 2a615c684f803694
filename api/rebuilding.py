"""Rebuilding projections: the store from histories and manifests; the rest is looked at from the journal."""

import asyncio

from starlette.concurrency import run_in_threadpool
from temporalio.service import RPCError

from api.histories import History, read_history
from api.problems import RunNotFound
from api.services import Services
from ratchet.artifacts.beginnings import read_beginning
from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.manifest import Manifest
from ratchet.spec import deadlines
from ratchet.spec.control import RegisterRun
from ratchet.spec.faults import Unavailable
from ratchet.spec.state import RunInput
from ratchet.spec.views import RebuildReport
from ratchet.store.rebuild import add_checkpoints, replay


async def rebuild_store(services: Services, run: str) -> RebuildReport:
    """Write a run's rows again, from its histories and, where those are gone, from its manifests. Rows that
    are there stay. Raises RunNotFound, Unavailable, or Conflict for a row that says something else."""
    history = await _history(services, run)
    return await run_in_threadpool(_rebuild_store, services, run, history)


async def _history(services: Services, run: str) -> History:
    try:
        async with asyncio.timeout(deadlines.REBUILD):
            return await read_history(await services.workflows.client(), run)
    except TimeoutError:
        raise Unavailable(
            f"Temporal did not give the whole history of {run} in {deadlines.REBUILD:g} s: try again"
        ) from None
    except (RPCError, RuntimeError) as error:
        raise Unavailable(
            f"Temporal does not give the history of {run} ({error}): see `ratchet status`"
        ) from None


def _rebuild_store(services: Services, run: str, history: History) -> RebuildReport:
    manifests, problems = list_manifests(services.artifacts, run)
    remarks = [f"checkpoint passed over: {problem}" for problem in problems]
    first = history.first or read_beginning(services.artifacts, run)
    if first is None:
        raise RunNotFound(f"neither Temporal nor the artifacts know a run {run}: nothing to rebuild it from")
    if history.first is None:
        remarks.append("Temporal has no history of it: steps and evaluations cannot be rebuilt")
    elif not history.from_the_start:
        remarks.append("Temporal has forgotten its first executions: their steps cannot be rebuilt")
    lost = not history.from_the_start or history.first is None
    added = 0
    if lost and services.store.get_run(run) is None:
        _register(services, run, first, history, manifests)
    if lost:
        # Incarnations only rise, so what histories no longer tell comes first.
        oldest = min((told.request.incarnation for told in history.told), default=None)
        older = [one for one in manifests if oldest is None or one.incarnation < oldest]
        added += _add(services, run, older)
    records = replay(services.store, history.told)
    if not history.open:
        # While it runs, the record of its newest checkpoint may still be under way.
        added += _add(services, run, manifests)
    return RebuildReport(
        run=run,
        what="store",
        complete=not lost,
        found={"executions": history.executions, "records": records, "checkpoints from manifests": added},
        remarks=remarks,
    )


def _register(
    services: Services, run: str, first: RunInput, history: History, manifests: list[Manifest]
) -> None:
    oldest = min([first.state.incarnation, *(manifest.incarnation for manifest in manifests)])
    at = history.began_at or min((manifest.created_at for manifest in manifests), default=0.0)
    request = RegisterRun(
        run=run, spec=first.spec, workflow_run_id=history.began_as, incarnation=max(oldest, 1)
    )
    services.store.register_run(request, at=at, code={})


def _add(services: Services, run: str, manifests: list[Manifest]) -> int:
    folders = {one.key: str(services.artifacts.local_folder(one.key)) for one in manifests}
    return add_checkpoints(services.store, run, manifests, folders)


async def look_at_journal(services: Services, run: str, what: str) -> RebuildReport:
    """What a data plane or a buffer would be refilled with. A synchronous run refills by itself, before it
    generates anything, so there is nothing to write: this says whether the journal holds what is needed."""
    return await run_in_threadpool(_look_at_journal, services, run, what)


def _look_at_journal(services: Services, run: str, what: str) -> RebuildReport:
    from ratchet.journal.reader import JournalIndex  # brings pyarrow

    manifests, problems = list_manifests(services.artifacts, run)
    path = services.store.path(run)
    newest = next((one for one in manifests if one.incarnation in path), None)
    cursor = newest.cursor if newest else 0
    since = f"checkpoint {newest.incarnation}-{newest.step}" if newest else "the base model"
    index = JournalIndex(services.artifacts.local_folder(f"runs/{run}/journal"))
    held = {key for key in index.keys() if key >= cursor}
    dropped = {key for key in index.tombstones() if key >= cursor}
    trained = [step.cursor_end for step in services.store.steps_on_path(run)]
    drawn = max([cursor, *trained, *(key + 1 for key in held | dropped)])
    missing = sorted(set(range(cursor, drawn)) - held - dropped)
    remarks = [f"checkpoint passed over: {problem}" for problem in problems]
    if drawn == cursor:
        remarks.append(f"nothing was drawn since {since}")
    else:
        remarks.append(f"prompts {cursor} to {drawn - 1} were drawn since {since}")
    if missing:
        shown = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
        remarks.append(f"not finished, so that they are generated: prompts {shown}")
    remarks.append("the run refills by itself, from the journal, before it generates anything")
    return RebuildReport(
        run=run,
        what=what,
        complete=not missing,
        found={"drawn": drawn - cursor, "in the journal": len(held), "dropped": len(dropped)},
        remarks=remarks,
    )
