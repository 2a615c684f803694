"""One fetch and one write for a model-parallel replica: its leader's. The others have what it has by
broadcast.

All of a replica need the same groups. Did each fetch them, the storage would send them once for every
rank; did each write, all but one would write what is there already.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ratchet.data_plane.batch import Group
from ratchet.data_plane.blocking import BlockingDataPlane
from ratchet.data_plane.columns import Cell, decode, encode
from ratchet.data_plane.errors import BadRequest

Broadcast = Callable[[Cell | None], Cell]
"""Among the ranks of one replica: the leader gives bytes, the others None, and each returns what the
leader gave. It has a deadline of its own: that a leader died is noticed by nothing else."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a rank is in its replica. All are to be given, 0 where there is no such dimension: with a
    guess, each rank of a replica could think that it leads."""

    tensor: int | None
    pipeline: int | None
    context: int | None

    def __post_init__(self) -> None:
        """Raises BadRequest."""
        for dimension in self.__slots__:
            rank = getattr(self, dimension)
            if type(rank) is not int or rank < 0:
                raise BadRequest(
                    f"the {dimension} rank in the replica is {rank!r}: give it an integer from 0"
                )

    @property
    def leads(self) -> bool:
        return self.tensor == self.pipeline == self.context == 0


class ReplicaPlane:
    """The data plane for a rank. Every rank of the replica makes the same calls in the same order; what the
    leader's raises is raised by all."""

    def __init__(self, plane: BlockingDataPlane, place: Coordinates, broadcast: Broadcast) -> None:
        self._plane = plane
        self._leads = place.leads
        self._broadcast = broadcast

    def fetch(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[Group]:
        """Lease and get. First goes a descriptor, then the bytes of all columns, one after the other."""
        cells: list[Cell] = []

        def described() -> list[Any]:
            descriptor: list[Any] = []
            for group in self._plane.fetch(partition, task, consumer, keys):
                encoded = {name: encode(name, column) for name, column in group.columns.items()}
                cells.extend(cell for _, cell in encoded.values())
                headers = {name: header for name, (header, _) in encoded.items()}
                descriptor.append((group.key, headers, dict(group.tags)))
            return descriptor

        descriptor = self._of_leader(described)
        if not any(header.num_bytes for _, headers, _ in descriptor for header in headers.values()):
            raw = np.empty(0, np.uint8)
        else:
            raw = self._broadcast(np.concatenate(cells) if self._leads else None)
        groups: list[Group] = []
        start = 0
        for key, headers, tags in descriptor:
            columns = {}
            for name, header in headers.items():
                columns[name] = decode(header, raw[start : start + header.num_bytes])
                start += header.num_bytes
            groups.append(Group(key, columns, tags))
        return groups

    def put(self, partition: str, groups: Sequence[Group]) -> None:
        """The leader's groups; those of the others go nowhere."""

        def written() -> None:
            self._plane.put(partition, groups)

        self._of_leader(written)

    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        self._of_leader(lambda: self._plane.ack(partition, task, consumer, keys))

    def _of_leader(self, work: Callable[[], Result]) -> Result:
        """What it returned to the leader, or raised there: for all, or the others would wait for it."""
        if not self._leads:
            result, error = pickle.loads(self._broadcast(None).tobytes())
        else:
            result: Any = None
            error: Exception | None = None
            try:
                result = work()
            except Exception as raised:
                error = raised
            self._broadcast(np.frombuffer(pickle.dumps((result, error)), np.uint8))
        if error is not None:
            raise error
        return result
