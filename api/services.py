"""What request handlers are given."""

import difflib
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request
from starlette.concurrency import run_in_threadpool

from api.problems import RunNotFound
from api.workflows import RunWorkflows
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.views import RunIdText
from ratchet.store import RunRecord, Store


@dataclass(frozen=True, slots=True)
class Services:
    store: Store
    workflows: RunWorkflows
    artifacts: LocalArtifactStore


def _services(request: Request) -> Services:
    return request.app.state.services


ServicesDep = Annotated[Services, Depends(_services)]


RunIdPath = Annotated[RunIdText, Path(description="The run's id.", examples=["tiny-addition-3fa2c1"])]


async def _run(
    run: Annotated[str, Path(description="The run's id.", examples=["tiny-addition-3fa2c1"])],
    services: ServicesDep,
) -> RunRecord:
    return await known_run(services, run)


async def known_run(services: Services, run: str) -> RunRecord:
    """The run's row. Raises RunNotFound with the nearest known id."""
    record = await run_in_threadpool(services.store.get_run, run)
    if record is not None:
        return record
    known = [other.id for other in await run_in_threadpool(services.store.list_runs, limit=200)]
    close = difflib.get_close_matches(run, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see `ratchet run ls`"
    raise RunNotFound(f"there is no run {run}: {hint}")


RunDep = Annotated[RunRecord, Depends(_run)]
"""The run that a path names; an unknown one is a 404 with the nearest known id."""
