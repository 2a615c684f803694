"""A data plane for threads that have no event loop."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from ratchet.data_plane.batch import BatchMeta, Group
from ratchet.data_plane.protocol import DataPlane

Result = TypeVar("Result")


class CallersLoop:
    """An event loop that runs while somebody waits, in the thread of who waits: to hand a call to another
    thread, and its result back, takes longer than many a call."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._turn = threading.Lock()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for it. What it calls has deadlines of its own."""
        with self._turn:
            return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.close()


class BlockingDataPlane:
    """Those calls of a DataPlane that engines make; see there."""

    def __init__(self, plane: DataPlane, loop: CallersLoop) -> None:
        self._plane = plane
        self._loop = loop
        self.life = 0
        """It is the same one always."""

    def put(self, partition: str, groups: Sequence[Group]) -> BatchMeta:
        return self._loop.run(self._plane.put(partition, groups))

    def fetch(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[Group]:
        """Lease, and get what was leased."""
        return self._loop.run(self._fetch(partition, task, consumer, keys))

    async def _fetch(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[Group]:
        return await self._plane.get(await self._plane.lease(partition, task, consumer, keys))

    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        self._loop.run(self._plane.ack(partition, task, consumer, keys))

    def describe(self, partition: str) -> BatchMeta:
        return self._loop.run(self._plane.describe(partition))

    def evict(self, partition: str, keys: Sequence[int], cause: str) -> int:
        return self._loop.run(self._plane.evict(partition, keys, cause))

    def get(self, partition: str, keys: Sequence[int]) -> list[Group]:
        """Without a lease."""
        return self._loop.run(self._get(partition, keys))

    async def _get(self, partition: str, keys: Sequence[int]) -> list[Group]:
        return await self._plane.get(await self._plane.describe(partition, keys))

    def list_groups(self, partition: str) -> list[int]:
        return self._loop.run(self._plane.list_groups(partition))
