"""What is called of the process that owns a data plane: its ledger, and its storage if that is memory."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ratchet.data_plane.batch import BatchMeta
from ratchet.data_plane.ledger import Admission, Entered, Want, Written
from ratchet.data_plane.storage import Cells, Wanted

Call = Callable[..., Awaitable[Any]]
"""(method, *arguments) -> what the owner's method returns."""


class Desk:
    """The owner's methods, typed; see Ledger and Owner."""

    def __init__(self, call: Call, post: Call | None = None) -> None:
        """`post`: a call whose answer is looked at by the next one, which raises its error."""
        self._call = call
        self._post = post or call

    async def ping(self) -> None:
        await self._call("ping")

    async def register_partition(self, partition: str, tasks: Sequence[str], capacity: int) -> None:
        await self._call("register_partition", partition, tasks, capacity)

    async def admit(self, partition: str, producer: str, wants: Sequence[Want]) -> Admission:
        return await self._call("admit", partition, producer, wants)

    async def commit(self, partition: str, written: Sequence[Written], keys: Sequence[int]) -> BatchMeta:
        return await self._call("commit", partition, written, keys)

    async def expect(self, partition: str, producer: str, slots: Sequence[tuple[int, str, int]]) -> None:
        await self._post("expect", partition, producer, slots)  # `enter` will say what was wrong with it

    async def enter(self, partition: str, written: Sequence[tuple[int, Written]]) -> Entered | None:
        return await self._call("enter", partition, written)

    async def abandon(self, partition: str, slots: Sequence[str]) -> None:
        await self._call("abandon", partition, slots)

    async def lease(
        self, partition: str, task: str, consumer: str, keys: Sequence[int], ttl: float
    ) -> BatchMeta:
        return await self._call("lease", partition, task, consumer, keys, ttl)

    async def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        # Nobody has to wait for the end of what is over.
        await self._post("ack", partition, task, consumer, keys)

    async def release(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        await self._call("release", partition, task, consumer, keys)

    async def describe(self, partition: str, keys: Sequence[int] | None) -> BatchMeta:
        return await self._call("describe", partition, keys)

    async def list_groups(self, partition: str) -> list[int]:
        return await self._call("list_groups", partition)

    async def depth(self, partition: str, task: str) -> int:
        return await self._call("depth", partition, task)

    async def stats(self) -> dict[str, dict[str, Any]]:
        return await self._call("stats")

    async def evict(self, partition: str, keys: Sequence[int], cause: str) -> int:
        return await self._call("evict", partition, keys, cause)

    async def lose(self, partition: str, slots: Sequence[str]) -> None:
        await self._call("lose", partition, slots)

    async def clear(self, partition: str) -> None:
        await self._call("clear", partition)


class OwnersMemory:
    """A Storage in the owner's memory, reached by calls."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def write(self, slots: Sequence[str], cells: Sequence[Cells]) -> list[None]:
        return await self._call("write", slots, cells)

    async def read(self, wanted: Sequence[Wanted]) -> list[Any]:
        return await self._call("read", wanted)

    async def erase(self, wanted: Sequence[Wanted]) -> None:
        await self._call("erase", wanted)

    async def wipe(self) -> None:
        await self._call("wipe")

    async def held(self) -> int | None:
        return await self._call("held")

    async def ping(self) -> None:
        await self._call("ping")

    def close(self) -> None:
        pass
