"""The data plane's partition that rollouts fill and training empties."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ratchet.data_plane.batch import BatchMeta, Group, GroupMeta
from ratchet.data_plane.columns import Dense
from ratchet.data_plane.filters import WEIGHT_VERSION
from ratchet.rollouts.columns import TOKENS, from_columns, to_columns
from ratchet.rollouts.group import PromptGroup
from ratchet.sessions.losses import GroupsMissing

PARTITION = "train"
TASK = "train"
BEGUN, GIVEN_UP = "begun", "given_up"
"""Columns of what is no finished group: one that is being sampled, and a prompt that will have none."""


class Plane(Protocol):
    """What of a data plane it takes, for threads that may block; see BlockingDataPlane."""

    @property
    def life(self) -> int:
        """Another number: it may lack what it had."""
        ...

    def put(self, partition: str, groups: Sequence[Group]) -> BatchMeta: ...
    def fetch(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[Group]: ...
    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None: ...
    def describe(self, partition: str) -> BatchMeta: ...
    def evict(self, partition: str, keys: Sequence[int], cause: str) -> int: ...


class TrainPartition:
    """Finished prompt groups, from those who generate to the one who trains. Raises what a DataPlane
    raises."""

    def __init__(self, plane: Plane, name: str) -> None:
        """`name`: who leases. Its successor, of the same name, has its leases."""
        self._plane = plane
        self._name = name
        self._life: int | None = None
        """Of the plane that was looked at last."""

    def put(self, groups: Sequence[PromptGroup]) -> None:
        """Idempotent on the key: the first one put stays."""
        if groups:  # an empty put would be a call to another process all the same
            self._plane.put(PARTITION, [to_columns(group) for group in groups])

    def begin(self, key: int, step: int) -> None:
        """Say that a group is being sampled, by weights of `step`."""
        self._plane.put(PARTITION, [_sign(key, BEGUN, {WEIGHT_VERSION: step})])

    def give_up(self, key: int) -> None:
        """Say that there will be no group of this key."""
        self._plane.put(PARTITION, [_sign(key, GIVEN_UP, {})])

    def look(self) -> list[GroupMeta]:
        """All that is there and not acknowledged, in the order of the keys. Raises GroupsMissing, once, where
        there is another plane than there was: nobody can tell by looking what that one lacks."""
        groups = self._plane.describe(PARTITION).groups
        known, self._life = self._life, self._plane.life
        if known not in (None, self._life):
            raise GroupsMissing("the data plane was replaced, and lacks what it had", role="data-plane")
        return sorted(groups, key=lambda group: group.key)

    def evict(self, keys: Sequence[int], cause: str) -> None:
        """Throw these away, finished or not; what comes of them later is thrown away, too."""
        if keys:
            self._plane.evict(PARTITION, keys, cause)
            self.ack(keys)

    def fetch(self, keys: Sequence[int]) -> list[PromptGroup]:
        """Lease these groups, all or none, and get them, in the order of `keys`."""
        return [from_columns(group) for group in self._plane.fetch(PARTITION, TASK, self._name, keys)]

    def ack(self, keys: Sequence[int]) -> None:
        """They are trained."""
        self._plane.ack(PARTITION, TASK, self._name, keys)


def _sign(key: int, name: str, tags: dict[str, int]) -> Group:
    return Group(key, {name: Dense(np.ones((1, 1), np.uint8))}, dict(tags))


def is_finished(group: GroupMeta) -> bool:
    return TOKENS in group.headers


def is_given_up(group: GroupMeta) -> bool:
    return GIVEN_UP in group.headers and TOKENS not in group.headers
