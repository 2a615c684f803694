"""Which groups of a batch are worth training on, decided from their tags; the others are evicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ratchet.data_plane.batch import BatchMeta, GroupMeta
from ratchet.data_plane.errors import BadRequest
from ratchet.data_plane.partition import listed
from ratchet.data_plane.protocol import DataPlane
from ratchet.spec.imports import load_class

WEIGHT_VERSION = "weight_version"
"""Tag: the step whose weights began the group."""


class Filter(Protocol):
    """Looks at metadata only: it fetches nothing, and moves no lease."""

    @property
    def name(self) -> str:
        """The cause that the ledger counts its evictions by."""
        ...

    def split(self, batch: BatchMeta) -> tuple[BatchMeta, BatchMeta]:
        """Those to keep and those to drop, as batches of their own; each group is in one of them."""
        ...


@dataclass(frozen=True, slots=True)
class StalenessFilter:
    """Keeps groups that were begun with weights at most `max_age` steps older than the current ones."""

    max_age: int
    current: int | None
    """Step of the weights that are trained now."""
    name: str = "stale"

    def __post_init__(self) -> None:
        """Raises BadRequest: with an age that is not known everything, or nothing, would be kept."""
        for what, value in (("max_age", self.max_age), ("current", self.current)):
            if not _is_step(value):
                raise BadRequest(f"{what} of the filter {self.name!r} is {value!r}: give it an integer")

    def split(self, batch: BatchMeta) -> tuple[BatchMeta, BatchMeta]:
        """Raises BadRequest for a group whose tag is not an integer, or that has none."""
        oldest = cast("int", self.current) - self.max_age
        return batch.partitioned(lambda group: _weight_version(group) >= oldest)


def _weight_version(group: GroupMeta) -> int:
    if WEIGHT_VERSION not in group.tags:
        raise BadRequest(
            f"group {group.key} has no tag {WEIGHT_VERSION!r}: its producer has to put it with one"
        )
    value = group.tags[WEIGHT_VERSION]
    if not _is_step(value):
        raise BadRequest(
            f"group {group.key} has the tag {WEIGHT_VERSION!r} = {value!r}: an integer is needed"
        )
    return cast("int", value)


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def load_filter(name: str, options: Mapping[str, Any]) -> Filter:
    """A filter of your own: `module:Class`, called with the options as keywords. Raises SpecError."""
    return load_class("filter", name, allowed="module:Class")(**options)


async def apply(plane: DataPlane, batch: BatchMeta, filters: Sequence[Filter]) -> BatchMeta:
    """What all filters keep, in order; the rest is evicted, by the name of the filter that dropped it first.

    Nothing is evicted if one of them raises. Raises BadRequest for one whose two halves are not the batch.
    """
    dropped: list[tuple[str, BatchMeta]] = []
    for each in filters:
        keep, drop = each.split(batch)
        if sorted(keep.keys + drop.keys) != sorted(batch.keys):
            raise BadRequest(
                f"the filter {each.name!r} made groups {listed(keep.keys)} and {listed(drop.keys)} out of "
                f"{listed(batch.keys)}: it has to put each into one of the two"
            )
        dropped.append((each.name, drop))
        batch = keep
    for name, drop in dropped:
        if drop.groups:
            await plane.evict(drop.partition, drop.keys, name)
    return batch
