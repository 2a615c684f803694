"""The data plane in one process: dicts behind a lock. Its owner is an actor, or a test."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.data_plane.protocol import BadRequest, Capabilities, GroupTag, NotReady
from ratchet.rollouts.group import PromptGroup


@dataclass(slots=True)
class _Partition:
    tasks: tuple[str, ...]
    groups: dict[int, PromptGroup] = field(default_factory=dict)
    leases: dict[tuple[str, int], str] = field(default_factory=dict)
    """(task, key) -> consumer."""
    acks: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Key -> tasks that are done with it; outlives the group, so that a late put cannot bring it back."""
    finished_below: int = 0
    """All tasks are done with every key below: `acks` does not name those, or it would grow for ever."""

    def acked(self, key: int) -> set[str]:
        return set(self.tasks) if key < self.finished_below else self.acks.get(key, set())

    def finished(self, key: int) -> bool:
        return len(self.acked(key)) == len(self.tasks)

    def fold(self) -> None:
        """Forget single keys that a contiguous run from below covers."""
        while len(self.acks.get(self.finished_below, ())) == len(self.tasks):
            del self.acks[self.finished_below]
            self.finished_below += 1

    def drop(self, key: int) -> None:
        self.groups.pop(key, None)
        for task in self.tasks:
            self.leases.pop((task, key), None)

    def fetch(self, name: str, keys: Sequence[int]) -> list[PromptGroup]:
        missing = [key for key in keys if key not in self.groups]
        if missing:
            raise NotReady(f"partition {name!r} does not hold groups {_listed(missing)}")
        return [self.groups[key] for key in keys]

    def refuse_other_owners(self, task: str, consumer: str, keys: Sequence[int]) -> None:
        for key in keys:
            owner = self.leases.get((task, key), consumer)
            if owner != consumer:
                raise BadRequest(f"group {key} is leased to {owner!r} for task {task!r}, not to {consumer!r}")


class MemoryDataPlane:
    """See DataPlane. Groups are handed out as they are, not copied: nobody writes to a finished group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[str, _Partition] = {}

    def capabilities(self) -> Capabilities:
        return Capabilities(backend="memory", survives_owner=False)

    def ping(self) -> None:
        with self._lock:
            return

    def register_partition(self, partition: str, tasks: Sequence[str]) -> None:
        if not tasks:
            raise BadRequest(f"partition {partition!r} needs at least one consumer task")
        with self._lock:
            known = self._partitions.setdefault(partition, _Partition(tuple(tasks)))
            if set(known.tasks) != set(tasks):
                raise BadRequest(
                    f"partition {partition!r} exists with tasks {list(known.tasks)}, not {list(tasks)}"
                )

    def put(self, partition: str, groups: Sequence[PromptGroup]) -> None:
        with self._lock:
            part = self._partition(partition)
            for group in groups:
                if not part.finished(group.key):
                    part.groups.setdefault(group.key, group)

    def lease(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> list[PromptGroup]:
        with self._lock:
            part = self._partition(partition, task)
            done = [key for key in keys if task in part.acked(key)]
            if done:
                # Not NotReady: whoever waited for these would wait for ever.
                raise BadRequest(f"task {task!r} has already acked groups {_listed(done)} of {partition!r}")
            groups = part.fetch(partition, keys)
            part.refuse_other_owners(task, consumer, keys)
            part.leases |= {(task, key): consumer for key in keys}
            return groups

    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        with self._lock:
            part = self._partition(partition, task)
            part.refuse_other_owners(task, consumer, keys)
            for key in keys:
                part.leases.pop((task, key), None)
                if key >= part.finished_below:
                    part.acks[key].add(task)
                if part.finished(key):
                    part.drop(key)
            part.fold()

    def release(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        with self._lock:
            part = self._partition(partition, task)
            part.refuse_other_owners(task, consumer, keys)
            for key in keys:
                part.leases.pop((task, key), None)

    def get(self, partition: str, keys: Sequence[int]) -> list[PromptGroup]:
        with self._lock:
            return self._partition(partition).fetch(partition, keys)

    def tags(self, partition: str, keys: Sequence[int] | None = None) -> list[GroupTag]:
        with self._lock:
            part = self._partition(partition)
            wanted = sorted(part.groups) if keys is None else keys
            return [_tag(part, group) for group in part.fetch(partition, wanted)]

    def list_groups(self, partition: str) -> list[int]:
        with self._lock:
            return sorted(self._partition(partition).groups)

    def depth(self, partition: str, task: str) -> int:
        with self._lock:
            part = self._partition(partition, task)
            return sum((task, key) not in part.leases and task not in part.acked(key) for key in part.groups)

    def evict(self, partition: str, keys: Sequence[int]) -> None:
        with self._lock:
            part = self._partition(partition)
            for key in keys:
                part.drop(key)

    def clear(self, partition: str) -> None:
        with self._lock:
            part = self._partition(partition)
            self._partitions[partition] = _Partition(part.tasks)

    def _partition(self, name: str, task: str | None = None) -> _Partition:
        part = self._partitions.get(name)
        if part is None:
            raise BadRequest(f"no partition {name!r}; known: {_listed(self._partitions)}")
        if task is not None and task not in part.tasks:
            raise BadRequest(f"partition {name!r} has no task {task!r}; known: {_listed(part.tasks)}")
        return part


def _tag(part: _Partition, group: PromptGroup) -> GroupTag:
    return GroupTag(
        key=group.key,
        incarnation=group.incarnation,
        version=str(group.version_start),
        num_samples=len(group.samples),
        num_tokens=sum(len(sample.tokens) for sample in group.samples),
        reward_mean=sum(sample.reward for sample in group.samples) / len(group.samples),
        leased_by={task: consumer for (task, key), consumer in part.leases.items() if key == group.key},
        acked=tuple(task for task in part.tasks if task in part.acked(group.key)),
    )


def _listed(items: Sequence[object] | dict[str, _Partition]) -> str:
    return ", ".join(map(str, items)) or "none"
