"""A data plane within reach: its clock, its ledger and its storage are at hand, to be moved and broken."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
import pytest_asyncio

from ratchet.data_plane.backends import CAPABILITIES
from ratchet.data_plane.batch import Group, TagValue
from ratchet.data_plane.calls import Desk
from ratchet.data_plane.columns import Column, Jagged, Objects
from ratchet.data_plane.ledger import Ledger
from ratchet.data_plane.memory import MemoryStorage
from ratchet.data_plane.owner import Owner
from ratchet.data_plane.plane import StoragePlane
from ratchet.data_plane.storage import Storage, Wanted
from ratchet.spec import deadlines

BACKENDS: dict[str, Callable[[], Storage]] = {"memory": MemoryStorage}
"""Those in this process; tests/integration/data_plane has the others."""

PARTITION = "p"
TASKS = ("train", "score")
WRITE_WITHIN = 60.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A data plane over a storage that may have been used before; what was put must be gone at the end."""

    def __init__(self, backend: str, storage: Storage, owners: Storage | None = None) -> None:
        self.backend = backend
        self.storage = storage
        self.owners = owners or storage
        self.clock = Clock()
        self.ledger = Ledger(WRITE_WITHIN, self.clock)
        self.owner = Owner(self.ledger, self.owners)
        self.desk = Desk(self.owner.call)
        self.plane = self.another("a-producer")

    def another(self, name: str) -> StoragePlane:
        """As another process has it."""
        return StoragePlane(self.desk, self.storage, CAPABILITIES[self.backend], name)

    async def ack_everywhere(self, keys: Sequence[int]) -> None:
        for task in TASKS:
            await self.plane.ack(PARTITION, task, "a", keys)

    async def fetch(self, key: int, columns: Sequence[str] | None = None) -> Mapping[str, Column]:
        (group,) = await self.plane.get(await self.plane.describe(PARTITION, [key]), columns)
        return group.columns

    async def text_of(self, key: int) -> object:
        text = (await self.fetch(key, ["text"]))["text"]
        assert isinstance(text, Objects)
        return text.values[0]

    async def lose(self, key: int) -> None:
        """Its bytes, behind the ledger's back. It needs to have been put by itself."""
        (meta,) = (await self.plane.describe(PARTITION, [key])).groups
        await self.owners.erase(
            [
                Wanted(place, {})
                for place in {place.slot: place for place in meta.placements.values()}.values()
            ]
        )

    async def is_empty(self) -> bool:
        """Whether no slot is held, once the owner has erased what nobody needs."""
        await self.owner.erase_doomed()
        return await self.owners.held() in (0, None)


@asynccontextmanager
async def rigged(backend: str, storage: Storage, owners: Storage | None = None) -> AsyncIterator[Rig]:
    rig = Rig(backend, storage, owners)
    await rig.plane.register_partition(PARTITION, TASKS)
    yield rig
    for partition in await rig.plane.stats():
        await rig.plane.clear(partition)
    assert await rig.is_empty()


@pytest_asyncio.fixture(params=BACKENDS)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rigged(request.param, BACKENDS[request.param]()) as rig:
        yield rig


@pytest.fixture
def plane(rig: Rig) -> StoragePlane:
    return rig.plane


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that finds no room says so at once."""
    monkeypatch.setattr(deadlines, "DATA_PLANE_ROOM", 0.0)


def a_group(key: int, text: str = "first", tags: Mapping[str, TagValue] | None = None) -> Group:
    """Two samples, of one and of two tokens."""
    tokens = Jagged.of([np.full(length, key, np.int32) for length in (1, 2)])
    return Group(key, {"tokens": tokens, "text": Objects((text, text))}, tags or {})
