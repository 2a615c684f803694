"""The data plane as producers and consumers have it: the owner's ledger, and a storage of their own."""

import asyncio
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ratchet.data_plane.batch import BatchMeta, Group, TagValue
from ratchet.data_plane.calls import Desk
from ratchet.data_plane.columns import Cell, Header, decode, encode
from ratchet.data_plane.errors import BadRequest, Full, NotReady
from ratchet.data_plane.ledger import Admission, Want, Written
from ratchet.data_plane.partition import ROLE, listed
from ratchet.data_plane.protocol import Capabilities
from ratchet.data_plane.storage import Storage, Wanted
from ratchet.spec import deadlines

LOOK_FOR_ROOM_EVERY = 0.1
EAGER = 256 * 1024
"""Bytes of a put that does not ask for room first: what a partition may hold too much for a moment."""
LOOK_AFTER_OWNER_EVERY = 1.0
Result = TypeVar("Result")
_NOTHING = np.empty(0, np.uint8)


class StoragePlane:
    """A DataPlane over an owner and a storage."""

    def __init__(
        self, desk: Desk, storage: Storage, capabilities: Capabilities, name: str, eager: int = EAGER
    ) -> None:
        """`name`: of this producer, for people. `eager`: see EAGER."""
        self._desk = desk
        self._storage = storage
        self._capabilities = capabilities
        self._name = name
        self._eager = eager
        self._own = uuid.uuid4().hex[:8]
        self._puts = 0
        """Eager ones; `_own` and this make slots that nobody else has."""

    async def capabilities(self) -> Capabilities:
        return self._capabilities

    async def ping(self) -> None:
        await self._desk.ping()
        await self._storage.ping()

    async def register_partition(self, partition: str, tasks: Sequence[str], capacity: int = 0) -> None:
        await self._desk.register_partition(partition, tasks, capacity)

    async def put(self, partition: str, groups: Sequence[Group]) -> BatchMeta:
        encoded = {
            group.key: _Encoded(
                group.tags, {name: encode(name, column) for name, column in group.columns.items()}
            )
            for group in reversed(groups)  # the first of a key counts
        }
        if empty := [key for key, group in encoded.items() if not group.columns]:
            raise BadRequest(f"groups {listed(empty)} have no columns")
        num_bytes = sum(group.num_bytes for group in encoded.values())
        keys = [group.key for group in groups]
        there = await self._put_eager(partition, encoded, keys) if 0 < num_bytes <= self._eager else None
        return there if there is not None else await self._put_admitted(partition, encoded, keys)

    async def _put_eager(
        self, partition: str, encoded: Mapping[int, "_Encoded"], keys: Sequence[int]
    ) -> BatchMeta | None:
        """Write first: to ask for room would take as long as the rest. None if there was none."""
        self._puts += 1
        slots = {key: f"{self._own}-{self._puts}-{key}" for key in encoded}
        await self._desk.expect(
            partition, self._name, [(key, slots[key], group.num_bytes) for key, group in encoded.items()]
        )
        locators = await self._write_or_abandon(partition, list(slots.values()), list(encoded.values()))
        written = {
            key: Written(slots[key], group.headers(), locator, group.tags)
            for (key, group), locator in zip(encoded.items(), locators, strict=True)
        }
        try:
            entered = await self._desk.enter(partition, list(written.items()))
        except BadRequest:
            await self._storage.erase([each.wanted() for each in written.values()])  # there may be no ledger
            raise
        if entered is None:
            return None
        there = {meta.key: meta for meta in entered.others}
        there |= {key: written[key].meta(partition, key, self._name, entered.at) for key in entered.fresh}
        return BatchMeta(partition, tuple(there[key] for key in dict.fromkeys(keys) if key in there))

    async def _put_admitted(
        self, partition: str, encoded: Mapping[int, "_Encoded"], keys: Sequence[int]
    ) -> BatchMeta:
        wants = [
            Want(key, {name: header.num_bytes for name, header in group.headers().items()})
            for key, group in sorted(encoded.items())
        ]
        grants = (await self._admission(partition, wants)).grants if wants else ()
        granted = [encoded[grant.key].only(grant.columns) for grant in grants]
        slots = [grant.slot for grant in grants]
        locators = await self._write_or_abandon(partition, slots, granted)
        written = [
            Written(slot, group.headers(), locator, group.tags)
            for slot, group, locator in zip(slots, granted, locators, strict=True)
        ]
        return await self._desk.commit(partition, written, list(dict.fromkeys(keys)))

    async def _admission(self, partition: str, wants: Sequence[Want]) -> Admission:
        began = time.monotonic()
        while True:
            admission = await self._desk.admit(partition, self._name, wants)
            if admission.blocked is None:
                return admission
            waited = time.monotonic() - began
            if waited > deadlines.DATA_PLANE_ROOM:
                raise Full(f"no room after {waited:.0f} s: {admission.blocked}", role=ROLE)
            await asyncio.sleep(LOOK_FOR_ROOM_EVERY)

    async def _write_or_abandon(
        self, partition: str, slots: Sequence[str], groups: Sequence["_Encoded"]
    ) -> list[Any]:
        try:
            return await self._write(slots, [group.stored() for group in groups])
        except BaseException:  # cancelled, too: the room is somebody else's now
            await self._desk.abandon(partition, slots)
            raise

    async def _write(self, slots: Sequence[str], cells: Sequence[dict[str, Cell]]) -> list[Any]:
        """Locators. A slot whose cells are all empty is not written."""
        full = [index for index, of_slot in enumerate(cells) if of_slot]
        locators: list[Any] = [None] * len(slots)
        if full:
            found = await self._while_owned(
                self._storage.write([slots[index] for index in full], [cells[index] for index in full])
            )
            for index, locator in zip(full, found, strict=True):
                locators[index] = locator
        return locators

    async def lease(
        self, partition: str, task: str, consumer: str, keys: Sequence[int], ttl: float | None = None
    ) -> BatchMeta:
        return await self._desk.lease(partition, task, consumer, keys, ttl or deadlines.DATA_PLANE_LEASE)

    async def get(self, batch: BatchMeta, columns: Sequence[str] | None = None) -> list[Group]:
        wanted: list[Wanted] = []
        of_group: list[list[int]] = []
        for group in batch.groups:
            names = list(group.headers) if columns is None else columns
            if missing := [name for name in names if name not in group.headers]:
                raise BadRequest(
                    f"group {group.key} has no columns {listed(missing)}; "
                    f"it has {listed(sorted(group.headers))}"
                )
            by_slot = {group.placements[name].slot: group.placements[name] for name in names}
            of_group.append(list(range(len(wanted), len(wanted) + len(by_slot))))
            for slot, place in by_slot.items():
                sizes = {
                    name: group.headers[name].num_bytes
                    for name in names
                    if group.placements[name].slot == slot and group.headers[name].num_bytes
                }
                wanted.append(Wanted(place, sizes))
        cells = await self._read(wanted)
        lost = [
            group.key
            for group, indices in zip(batch.groups, of_group, strict=True)
            if any(cells[index] is None for index in indices)
        ]
        if lost:
            # Out of the ledger too, or the refill would find them there.
            gone = [each.placement.slot for each, found in zip(wanted, cells, strict=True) if found is None]
            await self._desk.lose(batch.partition, gone)
            raise NotReady(f"the bytes of groups {listed(lost)} of {batch.partition!r} are gone", role=ROLE)
        groups: list[Group] = []
        for meta, indices in zip(batch.groups, of_group, strict=True):
            found = {name: cell for index in indices for name, cell in (cells[index] or {}).items()}
            names = list(meta.headers) if columns is None else columns
            values = {name: decode(meta.headers[name], found.get(name, _NOTHING)) for name in names}
            groups.append(Group(meta.key, values, meta.tags))
        return groups

    async def _read(self, wanted: Sequence[Wanted]) -> list[dict[str, Cell] | None]:
        full = [index for index, each in enumerate(wanted) if each.columns]
        cells: list[dict[str, Cell] | None] = [{} for _ in wanted]
        if full:
            found = await self._while_owned(self._storage.read([wanted[index] for index in full]))
            for index, of_slot in zip(full, found, strict=True):
                cells[index] = of_slot
        return cells

    async def _while_owned(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Its result; or the owner's loss, which a storage whose processes died with it would not notice."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_AFTER_OWNER_EVERY))[0]:
                await self._desk.stats()
        finally:
            task.cancel()
        return task.result()

    async def ack(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        await self._desk.ack(partition, task, consumer, keys)

    async def release(self, partition: str, task: str, consumer: str, keys: Sequence[int]) -> None:
        await self._desk.release(partition, task, consumer, keys)

    async def describe(self, partition: str, keys: Sequence[int] | None = None) -> BatchMeta:
        return await self._desk.describe(partition, keys)

    async def list_groups(self, partition: str) -> list[int]:
        return await self._desk.list_groups(partition)

    async def depth(self, partition: str, task: str) -> int:
        return await self._desk.depth(partition, task)

    async def evict(self, partition: str, keys: Sequence[int], cause: str) -> int:
        return await self._desk.evict(partition, keys, cause)

    async def clear(self, partition: str) -> None:
        await self._desk.clear(partition)

    async def stats(self) -> dict[str, dict[str, Any]]:
        return await self._desk.stats()


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A group that is on its way."""

    tags: Mapping[str, TagValue]
    columns: Mapping[str, tuple[Header, Cell]]

    @property
    def num_bytes(self) -> int:
        return sum(header.num_bytes for header, _ in self.columns.values())

    def headers(self) -> dict[str, Header]:
        return {name: header for name, (header, _) in self.columns.items()}

    def stored(self) -> dict[str, Cell]:
        """Cells that have bytes."""
        return {name: cell for name, (_, cell) in self.columns.items() if cell.nbytes}

    def only(self, names: Sequence[str]) -> "_Encoded":
        return _Encoded(self.tags, {name: self.columns[name] for name in names})
