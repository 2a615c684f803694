"""What request handlers are given."""

import asyncio
import difflib
from dataclasses import dataclass
from typing import Annotated, Self
from weakref import WeakValueDictionary

from fastapi import Depends, Path, Request
from starlette.concurrency import run_in_threadpool

from api.feed import Feed
from api.journals import Journals
from api.metrics_page import MetricsPage
from api.pace import Pace
from api.problems import RunNotFound
from api.settings import ApiSettings
from api.workflows import RunWorkflows
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.home import Home
from ratchet.spec.views import RunIdText
from ratchet.store import Audit, IdempotencyKeys, RunRecord, Store, Tokens


@dataclass(frozen=True, slots=True)
class Services:
    store: Store
    tokens: Tokens
    audit: Audit
    keys: IdempotencyKeys
    workflows: RunWorkflows
    artifacts: LocalArtifactStore
    journals: Journals
    feed: Feed
    pace: Pace
    metrics_page: MetricsPage
    settings: ApiSettings
    writing: asyncio.Lock
    """For the API's own small writes: SQLite's lock is not fair, and a crowd of waiters may wait too long."""

    claiming: WeakValueDictionary[str, asyncio.Lock]
    """By idempotency key, while somebody launches with it."""

    @classmethod
    def over(cls, home: Home, settings: ApiSettings) -> Self:
        """Everything that lives as long as the process. The store is not opened yet."""
        store = Store(home.store_url)
        return cls(
            store=store,
            tokens=Tokens(store),
            audit=Audit(store),
            keys=IdempotencyKeys(store),
            workflows=RunWorkflows(home),
            artifacts=LocalArtifactStore(home.artifacts),
            journals=Journals(home),
            feed=Feed(store),
            pace=Pace(settings.launches_at_once, settings.launches_per_second),
            metrics_page=MetricsPage(store),
            settings=settings,
            writing=asyncio.Lock(),
            claiming=WeakValueDictionary(),
        )


def _services(request: Request) -> Services:
    return request.app.state.services


ServicesDep = Annotated[Services, Depends(_services)]


RunIdPath = Annotated[RunIdText, Path(description="The run's id.", examples=["tiny-addition-3fa2c1"])]


async def _run(run: RunIdPath, services: ServicesDep) -> RunRecord:
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
