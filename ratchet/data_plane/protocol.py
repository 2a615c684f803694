"""What a data plane can do. Blocking calls, for use inside actors; every call is bounded in time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ratchet.rollouts.group import PromptGroup
from ratchet.sessions.losses import GroupsMissing
from ratchet.spec.faults import FaultKind, RatchetError


class DataPlaneError(RatchetError):
    """Base of what a data plane raises."""

    kind = FaultKind.UNAVAILABLE


class DataPlaneUnavailable(DataPlaneError):
    """It does not answer, or it lost its contents."""


class DataPlaneTimeout(DataPlaneError):
    """It answered nothing within the deadline."""


class NotReady(DataPlaneError, GroupsMissing):
    """A group asked for is not there (yet). The message names the keys."""


class BadRequest(DataPlaneError):
    """The call itself is wrong: an unknown partition, another owner's lease."""

    kind = FaultKind.INTERNAL


@dataclass(frozen=True, slots=True)
class GroupTag:
    """What is known of a group without fetching it."""

    key: int
    incarnation: int
    version: str
    num_samples: int
    num_tokens: int
    reward_mean: float
    leased_by: dict[str, str]
    """Task -> consumer, for live leases."""
    acked: tuple[str, ...]
    """Tasks that are done with it."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    backend: str
    survives_owner: bool
    """Contents outlive the process that hosts them."""


class DataPlane(Protocol):
    def capabilities(self) -> Capabilities: ...

    def ping(self) -> None:
        """Returns if the real request path works. Raises DataPlaneUnavailable."""
        ...

    def register_partition(self, partition: str, tasks: Sequence[str]) -> None:
        """Make a partition with its consumer tasks. Again with the same tasks: no effect;
        with others: BadRequest."""
        ...

    def put(self, partition: str, groups: Sequence[PromptGroup]) -> None:
        """Add groups. Idempotent on the key: the first one put stays."""
        ...

    def lease(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[PromptGroup]:
        """Lease groups by key, all or none, in the order of `keys`, and fetch them.

        At most one live lease a group and task: another consumer's lease is a BadRequest, and the same
        consumer asking again gets the same rows. Raises NotReady naming the missing keys.
        """
        ...

    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        """The task is done with these groups. Acked by every task, a group is dropped. Idempotent."""
        ...

    def release(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        """Give leases back without acking. Idempotent."""
        ...

    def get(self, partition: str, keys: Sequence[int]) -> list[PromptGroup]:
        """Fetch without a lease; moves no cursor. Raises NotReady."""
        ...

    def tags(self, partition: str, keys: Sequence[int] | None = None) -> list[GroupTag]: ...

    def list_groups(self, partition: str) -> list[int]:
        """Keys held, sorted; moves no cursor."""
        ...

    def depth(self, partition: str, task: str) -> int:
        """Groups neither leased nor acked by the task."""
        ...

    def evict(self, partition: str, keys: Sequence[int]) -> None:
        """Drop groups whatever their leases. Unknown keys are no error."""
        ...

    def clear(self, partition: str) -> None:
        """Drop every group of the partition, and its memory of acks."""
        ...
