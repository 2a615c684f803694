"""The data plane's partition that rollouts fill and training empties."""

from collections.abc import Sequence
from typing import Protocol

from ratchet.data_plane.batch import BatchMeta, Group
from ratchet.rollouts.columns import from_columns, to_columns
from ratchet.rollouts.group import PromptGroup

PARTITION = "train"
TASK = "train"


class Plane(Protocol):
    """What of a data plane it takes, for threads that may block; see BlockingDataPlane."""

    def put(self, partition: str, groups: Sequence[Group]) -> BatchMeta: ...
    def fetch(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[Group]: ...
    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None: ...


class TrainPartition:
    """Finished prompt groups, from those who generate to the one who trains. Raises what a DataPlane
    raises."""

    def __init__(self, plane: Plane, name: str) -> None:
        """`name`: who leases. Its successor, of the same name, has its leases."""
        self._plane = plane
        self._name = name

    def put(self, groups: Sequence[PromptGroup]) -> None:
        """Idempotent on the key: the first one put stays."""
        if groups:  # an empty put would be a call to another process all the same
            self._plane.put(PARTITION, [to_columns(group) for group in groups])

    def fetch(self, keys: Sequence[int]) -> list[PromptGroup]:
        """Lease these groups, all or none, and get them, in the order of `keys`."""
        return [from_columns(group) for group in self._plane.fetch(PARTITION, TASK, self._name, keys)]

    def ack(self, keys: Sequence[int]) -> None:
        """They are trained."""
        self._plane.ack(PARTITION, TASK, self._name, keys)
