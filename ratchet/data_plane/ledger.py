"""Who may have which group: room, leases, acks. Metadata only; it never sees a cell."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ratchet.data_plane.batch import BatchMeta, GroupMeta, Placement, TagValue
from ratchet.data_plane.columns import Header
from ratchet.data_plane.errors import BadRequest
from ratchet.data_plane.partition import Lease, Partition, Pending, listed
from ratchet.data_plane.storage import Wanted
from ratchet.data_plane.wire import Wired


@dataclass(frozen=True, slots=True)
class Want(Wired):
    """A group that a producer would put."""

    key: int
    columns: Mapping[str, int]
    """Column -> bytes."""


@dataclass(frozen=True, slots=True)
class Grant(Wired):
    """What of it is to be written, and where."""

    key: int
    slot: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Admission(Wired):
    grants: tuple[Grant, ...]
    blocked: str | None = None
    """Why there is no room yet. There are no grants then."""


@dataclass(frozen=True, slots=True)
class Written(Wired):
    """What was written into a slot."""

    slot: str
    headers: Mapping[str, Header]
    locator: Any
    tags: Mapping[str, TagValue]

    def wanted(self) -> Wanted:
        columns = {name: header.num_bytes for name, header in self.headers.items()}
        return Wanted(Placement(self.slot, self.locator, sum(columns.values())), columns)

    def meta(self, partition: str, key: int, producer: str, at: float) -> GroupMeta:
        """Of a group that this is all there is of."""
        placements = dict.fromkeys(self.headers, self.wanted().placement)
        return GroupMeta(partition, key, self.headers, placements, dict(self.tags), producer, at, {}, ())


@dataclass(frozen=True, slots=True)
class Entered(Wired):
    """What became of a put that did not ask for room first."""

    at: float
    """Seconds since the epoch."""
    fresh: tuple[int, ...]
    """Keys of which nothing was known: what the producer knows of these is all there is."""
    others: tuple[GroupMeta, ...]
    """What is known of the others; nothing of groups that all tasks are done with."""


class Ledger:
    """Thread-safe; every call answers at once. A large put is admitted, written and committed; a small one
    expected, which nobody waits for, written and entered; the rest is one call.

    Slots that nobody needs any more (acked, evicted, never committed, lost a race) are doomed until whoever
    owns the storage says that they are erased; they take room until then.
    """

    def __init__(self, write_within: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`write_within`: seconds from a slot being given out until it is given up."""
        self._lock = threading.RLock()
        self._clock = clock
        self._write_within = write_within
        self._nonce = uuid.uuid4().hex[:8]
        """Of this ledger: what a former one left in a storage has other names."""
        self._slots = 0
        self._partitions: dict[str, Partition] = {}

    # --- partitions

    def register_partition(self, partition: str, tasks: Sequence[str], capacity: int) -> None:
        if not tasks:
            raise BadRequest(f"partition {partition!r} needs at least one consumer task")
        with self._lock:
            known = self._partitions.setdefault(partition, Partition(partition, tuple(tasks), capacity))
            if set(known.tasks) != set(tasks):
                raise BadRequest(
                    f"partition {partition!r} exists with tasks {list(known.tasks)}, not {list(tasks)}"
                )

    # --- producing

    def admit(self, partition: str, producer: str, wants: Sequence[Want]) -> Admission:
        """Slots for what is not there yet. Columns that the partition has of a group, and groups that all
        tasks are done with, are not asked for again."""
        with self._lock:
            part = self._partition(partition)
            self._expire(part)
            new: list[tuple[Want, tuple[str, ...]]] = []
            for want in wants:
                entry = part.entries.get(want.key)
                columns = tuple(name for name in want.columns if not entry or name not in entry.headers)
                if columns and not part.finished(want.key):
                    new.append((want, columns))
            sizes = [sum(want.columns[name] for name in columns) for want, columns in new]
            if blocked := part.blocked(sum(sizes)):
                part.waits(producer, self._clock())
                return Admission((), blocked)
            part.goes_on(producer, self._clock())
            grants: list[Grant] = []
            until = self._clock() + self._write_within
            for (want, columns), size in zip(new, sizes, strict=True):
                self._slots += 1
                grant = Grant(want.key, f"{self._nonce}-{self._slots}", columns)
                part.expect(grant.slot, Pending(want.key, columns, producer, size, until))
                grants.append(grant)
            return Admission(tuple(grants))

    def commit(self, partition: str, written: Sequence[Written], keys: Sequence[int]) -> BatchMeta:
        """Make them visible, all at once: of two writers of a group's column, the first to commit. Returns
        what the partition then has of `keys`. Raises BadRequest, and commits nothing, if a slot is not
        pending: the partition was cleared, or the write took too long."""
        with self._lock:
            part = self._partition(partition)
            self._store(part, written, time.time())
            now = self._clock()
            return BatchMeta(part.name, tuple(part.meta(key, now) for key in keys if key in part.entries))

    def expect(self, partition: str, producer: str, slots: Sequence[tuple[int, str, int]]) -> None:
        """Keys, slots and bytes of a put that did not ask for room first. They take room from now on, so a
        partition may hold too much until `enter` looks."""
        with self._lock:
            part = self._partition(partition)
            until = self._clock() + self._write_within
            for key, slot, num_bytes in slots:
                part.expect(slot, Pending(key, (), producer, num_bytes, until))

    def enter(self, partition: str, written: Sequence[tuple[int, Written]]) -> Entered | None:
        """Commit what was expected; a second time, nothing. None, and nothing is committed, if there is no
        room for it. Raises BadRequest as `commit` does."""
        with self._lock:
            part = self._partition(partition)
            new = [(key, each) for key, each in written if not part.knows(key, each.slot)]
            if part.capacity and part.num_bytes > part.capacity:
                for _, each in new:
                    part.refuse(each.slot, each.wanted())
                return None
            fresh = tuple(key for key, _ in new if key not in part.entries and not part.acked(key))
            now = time.time()
            self._store(part, [each for _, each in new], now)
            looked, there = self._clock(), set(fresh)
            others = [key for key, _ in written if key not in there and key in part.entries]
            return Entered(now, fresh, tuple(part.meta(key, looked) for key in others))

    def abandon(self, partition: str, slots: Sequence[str]) -> None:
        """Writes that failed. Idempotent."""
        with self._lock:
            part = self._partition(partition)
            for slot in slots:
                part.give_up(slot)

    # --- consuming

    def lease(self, partition: str, task: str, consumer: str, keys: Sequence[int], ttl: float) -> BatchMeta:
        if len(set(keys)) != len(keys):
            raise BadRequest(f"groups {listed(keys)} are not all different: lease each once")
        with self._lock:
            part, now = self._partition(partition, task), self._clock()
            if done := [key for key in keys if task in part.acked(key)]:
                # Not NotReady: whoever waited for these would wait for ever.
                raise BadRequest(f"task {task!r} has already acked groups {listed(done)} of {partition!r}")
            part.require(keys)
            part.refuse_other_owners(task, consumer, keys, now)
            for key in keys:
                part.leases[task, key] = Lease(consumer, now + ttl)
            groups = tuple(part.meta(key, now) for key in keys)
            part.flow.groups_out += len(groups)
            part.flow.rows_out += sum(group.num_rows for group in groups)
            part.flow.bytes_out += sum(group.num_bytes for group in groups)
            return BatchMeta(partition, groups)

    def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        with self._lock:
            part = self._partition(partition, task)
            part.refuse_other_owners(task, consumer, keys, self._clock())
            for key in keys:
                part.ack(task, key)
            part.fold()

    def release(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        with self._lock:
            part = self._partition(partition, task)
            part.refuse_other_owners(task, consumer, keys, self._clock())
            for key in keys:
                part.leases.pop((task, key), None)

    # --- looking

    def describe(self, partition: str, keys: Sequence[int] | None) -> BatchMeta:
        with self._lock:
            part, now = self._partition(partition), self._clock()
            wanted = sorted(part.entries) if keys is None else keys
            part.require(wanted)
            return BatchMeta(partition, tuple(part.meta(key, now) for key in wanted))

    def list_groups(self, partition: str) -> list[int]:
        with self._lock:
            return sorted(self._partition(partition).entries)

    def depth(self, partition: str, task: str) -> int:
        with self._lock:
            part, now = self._partition(partition, task), self._clock()
            return part.depth(task, now)

    def stats(self) -> dict[str, dict[str, Any]]:
        """By partition: groups, bytes, leases, depth by task, slots being written and erased, producers that
        wait for room, groups evicted by cause, and what went through it (Flow)."""
        with self._lock:
            now = self._clock()
            return {
                name: {
                    "groups": len(part.entries),
                    "bytes": part.num_bytes,
                    "capacity": part.capacity,
                    "leases": sum(lease.until > now for lease in part.leases.values()),
                    "writing": len(part.pending),
                    "erasing": len(part.doomed),
                    "waiting": len(part.waiting),
                    "depth": {task: part.depth(task, now) for task in part.tasks},
                    "evicted": dict(part.evicted),
                    **asdict(part.flow),
                }
                for name, part in self._partitions.items()
            }

    # --- dropping

    def evict(self, partition: str, keys: Sequence[int], cause: str) -> int:
        """How many of them were there."""
        with self._lock:
            part = self._partition(partition)
            dropped = sum([part.drop(key) for key in keys])
            if dropped:
                part.evicted[cause] += dropped
            return dropped

    def lose(self, partition: str, slots: Sequence[str]) -> None:
        """The bytes of these slots are gone, and with them the groups that have them still: one that was put
        anew since the reader heard of it stays."""
        with self._lock:
            part = self._partition(partition)
            lost = [key for key, entry in part.entries.items() if not entry.slots.keys().isdisjoint(slots)]
            for key in lost:
                part.drop(key)
            if lost:
                part.evicted["lost"] += len(lost)

    def clear(self, partition: str) -> None:
        """Forget groups, leases, acks, and writes under way."""
        with self._lock:
            part = self._partition(partition)
            for key in list(part.entries):
                part.drop(key)
            for slot in list(part.pending):
                part.give_up(slot)
            part.acks.clear()
            part.finished_below = 0

    def doomed(self) -> list[Wanted]:
        """Slots to erase."""
        with self._lock:
            for part in self._partitions.values():
                self._expire(part)
            return [wanted for part in self._partitions.values() for wanted in part.doomed.values()]

    def erased(self, wanted: Sequence[Wanted]) -> None:
        """Some of what `doomed` returned. A slot that was written meanwhile is to be erased again."""
        with self._lock:
            for part in self._partitions.values():
                for each in wanted:
                    if part.doomed.get(each.placement.slot) is each:
                        part.erased(each.placement.slot)

    # --- below

    def _store(self, part: Partition, written: Sequence[Written], now: float) -> None:
        self._expire(part)
        if strangers := [each.slot for each in written if each.slot not in part.pending]:
            for each in written:
                part.refuse(each.slot, each.wanted())
            raise BadRequest(
                f"partition {part.name!r} waits for no write of {listed(strangers)}: it was cleared "
                f"meanwhile, or the write took more than {self._write_within:.0f} s"
            )
        for each in written:
            entry = part.store(each.slot, each.wanted(), each.headers, now)
            if entry:
                entry.tags = {**each.tags, **entry.tags}

    def _partition(self, name: str, task: str | None = None) -> Partition:
        part = self._partitions.get(name)
        if part is None:
            raise BadRequest(f"no partition {name!r}; known: {listed(self._partitions)}")
        if task is not None and task not in part.tasks:
            raise BadRequest(f"partition {name!r} has no task {task!r}; known: {listed(part.tasks)}")
        return part

    def _expire(self, part: Partition) -> None:
        now = self._clock()
        for slot in [slot for slot, pending in part.pending.items() if pending.until <= now]:
            part.give_up(slot)
