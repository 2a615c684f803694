"""Groups as the data plane knows them without their contents, and batches of them. Nothing here has
effects."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ratchet.data_plane.columns import Column, Header
from ratchet.data_plane.errors import BadRequest
from ratchet.data_plane.wire import Wired

TagValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A prompt group with its contents: what is put, and what is got."""

    key: int
    columns: Mapping[str, Column]
    """By name. Each has a row for every sample, or one that all of them share."""
    tags: Mapping[str, TagValue] = field(default_factory=dict)
    """What may be known of it without fetching it."""


@dataclass(frozen=True, slots=True)
class Placement(Wired):
    """Where a cell is."""

    slot: str
    """Its name in the storage. Never used for another cell: a late write cannot change what was committed."""
    locator: Any
    """What the storage's `write` said of the slot."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GroupMeta(Wired):
    """What is known of a group without fetching it."""

    partition: str
    key: int
    headers: Mapping[str, Header]
    """By column."""
    placements: Mapping[str, Placement]
    """By column. Columns of one put have one slot."""
    tags: Mapping[str, TagValue]
    producer: str
    created_at: float
    """Seconds since the epoch, when it was committed."""
    leased_by: Mapping[str, str]
    """Task -> consumer, for live leases."""
    acked: tuple[str, ...]
    """Tasks that are done with it."""

    @property
    def num_bytes(self) -> int:
        return sum(header.num_bytes for header in self.headers.values())

    @property
    def num_rows(self) -> int:
        return max((header.num_rows for header in self.headers.values()), default=0)

    def longest(self, column: str) -> int:
        """Values of the longest row of a jagged column."""
        return max(self.headers[column].lengths, default=0)


@dataclass(frozen=True, slots=True)
class BatchMeta(Wired):
    """Groups of one partition, in an order that means something: batches are cut and joined by it."""

    partition: str
    groups: tuple[GroupMeta, ...]

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def keys(self) -> list[int]:
        return [group.key for group in self.groups]

    @property
    def fields(self) -> list[str]:
        """Columns that every group has, sorted."""
        names = [set(group.headers) for group in self.groups]
        return sorted(set.intersection(*names)) if names else []

    def subset(self, keys: Sequence[int]) -> Self:
        """Those of `keys`, in that order. Raises BadRequest for one that is missing or comes twice."""
        by_key = {group.key: group for group in self.groups}
        if missing := [key for key in keys if key not in by_key]:
            raise BadRequest(f"the batch has no groups {', '.join(map(str, missing))}")
        if len(set(keys)) != len(keys):
            raise BadRequest(f"groups {', '.join(map(str, keys))} are not all different")
        return replace(self, groups=tuple(by_key[key] for key in keys))

    def slice(self, start: int, end: int) -> Self:
        """Groups `start` to `end` by position, as of a list."""
        return replace(self, groups=self.groups[start:end])

    def concat(self, *others: "BatchMeta") -> Self:
        """This one's groups, then the others'. Raises BadRequest for another partition, or a group twice."""
        if strangers := {other.partition for other in others} - {self.partition}:
            raise BadRequest(
                f"batches of {', '.join(sorted(strangers))} do not go with one of {self.partition}"
            )
        groups = (*self.groups, *(group for other in others for group in other.groups))
        if len({group.key for group in groups}) != len(groups):
            raise BadRequest("batches that have groups in common cannot be joined")
        return replace(self, groups=groups)

    def drop(self, keys: Collection[int]) -> Self:
        """Without those."""
        return replace(self, groups=tuple(group for group in self.groups if group.key not in keys))

    def partitioned(self, keep: Callable[[GroupMeta], bool]) -> tuple[Self, Self]:
        """Those that are kept, and the others."""
        kept = {group.key for group in self.groups if keep(group)}
        return self.drop({group.key for group in self.groups} - kept), self.drop(kept)

    def tags(self, name: str) -> list[TagValue]:
        """That tag of every group; None where there is none."""
        return [group.tags.get(name) for group in self.groups]

    def with_tags(self, tags: Sequence[Mapping[str, TagValue]]) -> Self:
        """With more tags, one mapping for each group. Raises BadRequest for another number of them."""
        if len(tags) != len(self.groups):
            raise BadRequest(f"{len(tags)} mappings of tags for {len(self.groups)} groups")
        tagged = (
            replace(group, tags={**group.tags, **more}) for group, more in zip(self.groups, tags, strict=True)
        )
        return replace(self, groups=tuple(tagged))
