"""The application: routers, errors as problems, and what lives as long as the process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.trustedhost import TrustedHostMiddleware

from api import problems
from api.routers import actions, health, rebuilding, runs
from api.services import Services
from api.workflows import RunWorkflows
from ratchet import __version__
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.home import Home
from ratchet.store import Store

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def create_app(home: Home) -> FastAPI:
    """The API over one state folder. Its store is opened at start; Temporal may come and go."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = Store(home.store_url)
        await asyncio.to_thread(store.migrate)
        app.state.services = Services(
            store=store, workflows=RunWorkflows(home), artifacts=LocalArtifactStore(home.artifacts)
        )
        yield
        store.close()

    app = FastAPI(
        title="Ratchet",
        version=__version__,
        summary="RL post-training of language models as durable workflows.",
        lifespan=lifespan,
    )
    # Without tokens, only this host may ask; a web page that rebinds its name to loopback may not.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK))
    problems.install(app)
    app.include_router(health.router)
    app.include_router(runs.router)
    app.include_router(actions.router)
    app.include_router(rebuilding.router)
    return app
