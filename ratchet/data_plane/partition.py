"""One partition of the ledger: its groups, and who is to have them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ratchet.data_plane.batch import GroupMeta, Placement, TagValue
from ratchet.data_plane.columns import Header
from ratchet.data_plane.errors import BadRequest, NotReady
from ratchet.data_plane.storage import Wanted

ROLE = "data-plane"


@dataclass(slots=True)
class Pending:
    """A slot that was given out and is not committed."""

    key: int
    columns: tuple[str, ...]
    producer: str
    num_bytes: int
    until: float


@dataclass(slots=True)
class Entry:
    """A group that is there."""

    producer: str
    created_at: float
    headers: dict[str, Header] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    tags: dict[str, TagValue] = field(default_factory=dict)
    slots: dict[str, Wanted] = field(default_factory=dict)
    """Slot -> all that was written into it."""

    @property
    def num_bytes(self) -> int:
        return sum(wanted.placement.num_bytes for wanted in self.slots.values())


@dataclass(slots=True)
class Lease:
    consumer: str
    until: float


@dataclass(slots=True)
class Flow:
    """What went through a partition. Counters only grow: whoever wants rates takes differences."""

    groups_in: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    groups_out: int = 0
    """Leased, each time."""
    rows_out: int = 0
    bytes_out: int = 0
    """Of all their columns."""
    room_waits: int = 0
    """Puts that had to wait for room."""
    room_wait_s: float = 0.0
    """Seconds of it, for those that are over."""


@dataclass(slots=True)
class Partition:
    name: str
    tasks: tuple[str, ...]
    capacity: int
    entries: dict[int, Entry] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)
    """By slot."""
    leases: dict[tuple[str, int], Lease] = field(default_factory=dict)
    """(task, key) -> lease."""
    acks: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Key -> tasks that are done with it; outlives the group, so that a late put cannot bring it back."""
    finished_below: int = 0
    """All tasks are done with every key below: `acks` does not name those, or it would grow for ever."""
    doomed: dict[str, Wanted] = field(default_factory=dict)
    """Slots that nobody needs and that are not erased yet: they take room."""
    evicted: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Cause -> groups."""
    num_bytes: int = 0
    """Of everything that takes room."""
    flow: Flow = field(default_factory=Flow)
    waiting: dict[str, float] = field(default_factory=dict)
    """Producer -> since when it waits for room."""

    # --- who is done with what

    def acked(self, key: int) -> set[str]:
        return set(self.tasks) if key < self.finished_below else self.acks.get(key, set())

    def finished(self, key: int) -> bool:
        return len(self.acked(key)) == len(self.tasks)

    def ack(self, task: str, key: int) -> None:
        self.leases.pop((task, key), None)
        if key >= self.finished_below:
            self.acks[key].add(task)
        if self.finished(key):
            self.drop(key)

    def fold(self) -> None:
        """Forget single keys that a contiguous run from below covers."""
        while len(self.acks.get(self.finished_below, ())) == len(self.tasks):
            del self.acks[self.finished_below]
            self.finished_below += 1

    # --- who has what

    def owner(self, task: str, key: int, now: float) -> str | None:
        """Who has a live lease."""
        lease = self.leases.get((task, key))
        return lease.consumer if lease and lease.until > now else None

    def depth(self, task: str, now: float) -> int:
        """Groups that nobody has leased or acked."""
        return sum(self.owner(task, key, now) is None and task not in self.acked(key) for key in self.entries)

    def refuse_other_owners(self, task: str, consumer: str, keys: Iterable[int], now: float) -> None:
        for key in keys:
            owner = self.owner(task, key, now) or consumer
            if owner != consumer:
                raise BadRequest(f"group {key} is leased to {owner!r} for task {task!r}, not to {consumer!r}")

    def require(self, keys: Iterable[int]) -> None:
        if missing := [key for key in keys if key not in self.entries]:
            raise NotReady(f"partition {self.name!r} does not hold groups {listed(missing)}", role=ROLE)

    def meta(self, key: int, now: float) -> GroupMeta:
        entry = self.entries[key]
        owners = {task: owner for task in self.tasks if (owner := self.owner(task, key, now))}
        return GroupMeta(
            partition=self.name,
            key=key,
            headers=dict(entry.headers),
            placements=dict(entry.placements),
            tags=dict(entry.tags),
            producer=entry.producer,
            created_at=entry.created_at,
            leased_by=owners,
            acked=tuple(task for task in self.tasks if task in self.acked(key)),
        )

    # --- what takes room

    def expect(self, slot: str, pending: Pending) -> None:
        self.pending[slot] = pending
        self.num_bytes += pending.num_bytes

    def store(self, slot: str, wanted: Wanted, headers: Mapping[str, Header], now: float) -> Entry | None:
        """Take what was written into a pending slot: the group it is of, or None if nobody needs it."""
        pending = self.pending.pop(slot)
        self.num_bytes += wanted.placement.num_bytes - pending.num_bytes
        entry = self.entries.get(pending.key) or Entry(pending.producer, now)
        new = {name: header for name, header in headers.items() if name not in entry.headers}
        if not new or self.finished(pending.key):
            self.doomed[slot] = wanted
            return None
        self.flow.groups_in += pending.key not in self.entries
        self.flow.rows_in += 0 if entry.headers else max(header.num_rows for header in new.values())
        self.flow.bytes_in += sum(header.num_bytes for header in new.values())
        self.entries[pending.key] = entry
        entry.headers |= new
        entry.placements |= dict.fromkeys(new, wanted.placement)
        entry.slots[slot] = wanted
        return entry

    def drop(self, key: int) -> bool:
        """Whether it was there."""
        entry = self.entries.pop(key, None)
        for task in self.tasks:
            self.leases.pop((task, key), None)
        self.doomed |= entry.slots if entry else {}
        return entry is not None

    def give_up(self, slot: str) -> None:
        """Nobody knows whether a pending slot was written: what finds it in a storage may be missing."""
        if pending := self.pending.pop(slot, None):
            place = Placement(slot, None, pending.num_bytes)
            self.doomed[slot] = Wanted(place, dict.fromkeys(pending.columns, 0))

    def knows(self, key: int, slot: str) -> bool:
        """Whether the slot was committed, to the group or for nothing."""
        entry = self.entries.get(key)
        return slot in self.doomed or (entry is not None and slot in entry.slots)

    def refuse(self, slot: str, wanted: Wanted) -> None:
        """Something was written, and is not wanted any more: now it is known where it is."""
        if any(slot in entry.slots for entry in self.entries.values()):
            return  # it was committed, and this is the same once more
        self.give_up(slot)
        self.erased(slot)
        self.doomed[slot] = wanted
        self.num_bytes += wanted.placement.num_bytes

    def erased(self, slot: str) -> None:
        if wanted := self.doomed.pop(slot, None):
            self.num_bytes -= wanted.placement.num_bytes

    def waits(self, producer: str, now: float) -> None:
        if producer not in self.waiting:
            self.waiting[producer] = now
            self.flow.room_waits += 1

    def goes_on(self, producer: str, now: float) -> None:
        if since := self.waiting.pop(producer, None):
            self.flow.room_wait_s += now - since

    def blocked(self, size: int) -> str | None:
        """Why there is no room for so many bytes more. Raises BadRequest if there never is."""
        if not self.capacity or self.num_bytes + size <= self.capacity:
            return None
        if size > self.capacity:
            raise BadRequest(
                f"{_mib(size)} at once do not fit into partition {self.name!r}, which has room for "
                f"{_mib(self.capacity)}: raise data_plane.capacity_gib"
            )
        oldest = min(self.entries, default=None)
        return (
            f"partition {self.name!r} holds {_mib(self.num_bytes)} of {_mib(self.capacity)}, in "
            f"{len(self.entries)} groups of which {oldest} is the oldest, and {_mib(size)} more are to be "
            f"put: {listed(self.tasks)} acknowledged none, or data_plane.capacity_gib is too small"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items)) or "none"
