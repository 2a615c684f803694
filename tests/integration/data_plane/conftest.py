"""Data planes that are processes of their own, in a Ray cluster of the tests'."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import ray

from ratchet.data_plane.storage import Storage
from tests.unit.data_plane.conftest import Rig, no_patience, rigged
from workers.actors.data_plane import open_storage_of
from workers.actors.transfer_queue import TransferQueueParts

__all__ = ["no_patience"]

ROOM = 256 * 2**20
BACKENDS = ["simple", "mooncake_cpu", "ray"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="rt-")  # short: sockets have their paths in it
    before = os.environ.get("RAY_AUTH_MODE")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token in the home of whoever runs this
    ray.init(
        num_cpus=16, include_dashboard=False, log_to_driver=False, _temp_dir=folder, object_store_memory=2**28
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ["RAY_AUTH_MODE"]
        else:
            os.environ["RAY_AUTH_MODE"] = before


@pytest.fixture(scope="session")
def parts(cluster: None) -> Iterator[dict[str, TransferQueueParts]]:
    """By backend, each started by the first test that needs it."""
    started: dict[str, TransferQueueParts] = {}
    yield started
    for each in started.values():
        each.end()


@pytest_asyncio.fixture(scope="session")
async def storages(parts: dict[str, TransferQueueParts]) -> AsyncIterator[dict[str, Storage]]:
    """Two of each backend: the owner's, and a producer's."""
    opened: dict[str, Storage] = {}
    yield opened
    for storage in opened.values():
        storage.close()


@pytest_asyncio.fixture(params=BACKENDS)
async def rig(
    request: pytest.FixtureRequest, parts: dict[str, TransferQueueParts], storages: dict[str, Storage]
) -> AsyncIterator[Rig]:
    backend: str = request.param
    if backend not in storages:
        parts[backend] = TransferQueueParts(backend, 1, ROOM)
        own, others = parts[backend].start()
        storages[f"{backend}, owner"] = await open_storage_of(own, "owner")
        storages[backend] = await open_storage_of(others, "test")
    async with rigged(backend, storages[backend], storages[f"{backend}, owner"]) as rig:
        yield rig
