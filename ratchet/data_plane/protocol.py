"""What a data plane can do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ratchet.data_plane.batch import BatchMeta, Group


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do beyond what all can."""

    backend: str
    one_hop: bool
    """Bytes go from producer to storage to consumer, and through no other process."""
    survives_producer: bool
    """What a producer put is there when it has died."""
    reports_held: bool
    """It can tell how many slots it keeps, so that a clear is verified by looking."""


class DataPlane(Protocol):
    """Prompt groups on their way from producers to consumers.

    Every call ends in bounded time. Raises DataPlaneUnavailable (DataPlaneTimeout) when it takes another
    plane and a refill to go on, NotReady when it takes only a refill, BadRequest when the call is wrong.
    """

    async def capabilities(self) -> Capabilities: ...

    async def ping(self) -> None:
        """Returns if the real request path works. Raises DataPlaneUnavailable."""
        ...

    async def register_partition(self, partition: str, tasks: Sequence[str], capacity: int = 0) -> None:
        """Make a partition with its consumer tasks and its room in bytes (0: unbounded). Again with the same
        tasks: no effect; with others: BadRequest."""
        ...

    async def put(self, partition: str, groups: Sequence[Group]) -> BatchMeta:
        """Add groups, or columns of groups that are there. Idempotent on key and column: what was first
        stays. Waits while the partition has no room; raises Full after the deadline. Returns what is there
        then: a group that all tasks are done with is not."""
        ...

    async def lease(
        self, partition: str, task: str, consumer: str, keys: Sequence[int], ttl: float | None = None
    ) -> BatchMeta:
        """Lease groups by key, all or none, in the order of `keys`.

        At most one live lease a group and task: another consumer's is a BadRequest, and the same consumer
        asking again gets the same groups. After `ttl` seconds a lease may be handed on. Raises NotReady
        naming the missing keys.
        """
        ...

    async def get(self, batch: BatchMeta, columns: Sequence[str] | None = None) -> list[Group]:
        """Fetch the groups of a batch, all their columns or those. Moves no cursor. Raises NotReady for
        groups that are gone; BadRequest for a column that one has not."""
        ...

    async def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        """The task is done with these groups. Acked by every task, a group is dropped. Idempotent."""
        ...

    async def release(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        """Give leases back without acking. Idempotent."""
        ...

    async def describe(self, partition: str, keys: Sequence[int] | None = None) -> BatchMeta:
        """Tags, columns, leases and acks of groups; moves no cursor. Raises NotReady."""
        ...

    async def list_groups(self, partition: str) -> list[int]:
        """Keys held, sorted; moves no cursor."""
        ...

    async def depth(self, partition: str, task: str) -> int:
        """Groups neither leased nor acked by the task."""
        ...

    async def evict(self, partition: str, keys: Sequence[int], cause: str) -> int:
        """Drop groups whatever their leases, and count them by cause. Forgets no ack. Returns how many were
        there; unknown keys are no error."""
        ...

    async def clear(self, partition: str) -> None:
        """Drop every group of the partition, and its memory of acks. Returns when the storage has let go of
        them."""
        ...

    async def stats(self) -> dict[str, dict[str, Any]]:
        """By partition: groups, bytes, capacity, leases, writing, erasing, evicted (by cause)."""
        ...
