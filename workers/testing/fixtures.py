"""Fixtures of the pytest plugin. All names begin with `ratchet_`."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.testing import WorkflowEnvironment

from ratchet.spec.faults import Unavailable
from workers.supervisor import temporal_server
from workers.testing.replay import Golden
from workers.testing.servers import dev_server, time_skipping_binary, time_skipping_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ratchet_temporal(request: pytest.FixtureRequest) -> AsyncIterator[WorkflowEnvironment]:
    """A Temporal server for the whole session, started or, with --temporal-address, an existing one.

    Tests share it: choose a task queue and workflow ids of your own (a uuid in each will do).
    """
    address: str | None = request.config.getoption("--temporal-address")
    if not address:
        require(temporal_server.binary)
    async with dev_server(address) as environment:
        yield environment


@pytest_asyncio.fixture(loop_scope="session")
async def ratchet_time_skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server of the test's own, in which `workflow.sleep` of days takes milliseconds."""
    require(time_skipping_binary)
    async with time_skipping_server() as environment:
        yield environment


@pytest.fixture
def ratchet_golden(pytestconfig: pytest.Config) -> Callable[[str], Golden]:
    """`ratchet_golden("pause-resume")`: a golden history and the snapshot of its commands, as paths."""
    folder = pytestconfig.rootpath / pytestconfig.getini("ratchet_histories")
    return lambda name: Golden.named(folder, name)


@pytest.fixture
def ratchet_update_golden(pytestconfig: pytest.Config) -> bool:
    """Whether --update-golden was given: for `assert_replays(..., update=...)`."""
    return bool(pytestconfig.getoption("--update-golden"))


def require(find: Callable[[], Path]) -> None:
    """Skip the test where the binary is missing; fail it under CI, where nothing is skipped in silence."""
    try:
        find()
    except Unavailable as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
