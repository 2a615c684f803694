"""The application: routers, errors as problems, and what lives as long as the process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import openapi, problems
from api.guard import Guard
from api.routers import (
    actions,
    events,
    health,
    lineage,
    metrics,
    pages,
    rebuilding,
    records,
    rollouts,
    runs,
    tokens,
)
from api.services import Services
from api.settings import ApiSettings
from api.telemetry import Traced
from ratchet import __version__
from ratchet.spec.home import Home


def create_app(home: Home, settings: ApiSettings | None = None) -> FastAPI:
    """The API over one state folder. Its store is opened at start; Temporal may come and go."""
    settings = settings or ApiSettings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services = Services.over(home, settings)
        await asyncio.to_thread(services.store.migrate)
        app.state.services = services
        watching = asyncio.create_task(services.feed.watch())
        yield
        watching.cancel()
        services.store.close()

    app = FastAPI(
        title="Ratchet",
        version=__version__,
        summary="RL post-training of language models as durable workflows.",
        lifespan=lifespan,
        generate_unique_id_function=openapi.name_of,
    )
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Traced)
    problems.install(app)
    openapi.install(app)
    for module in (
        health,
        metrics,
        runs,
        records,
        rollouts,
        lineage,
        events,
        actions,
        rebuilding,
        tokens,
        pages,
    ):
        app.include_router(module.router)
    return app
