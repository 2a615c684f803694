"""Cells in TransferQueue: a parcel of slots is one of its rows."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.storage import Cells, Wanted
from ratchet.data_plane.transfer_queue.parcels import PACKED, Locator, num_small, parcels
from ratchet.data_plane.transfer_queue.rows import RowNames, Rows

SPARE = 2**24
"""Bytes of memory that are kept for the next write."""


class TransferQueueStorage:
    """A Storage, of one event loop.

    What the library offers as put, get and claim is not used: it hands rows out once, by their place in a
    queue, and sets the process's number of threads on every call.
    """

    def __init__(self, names: RowNames, rows: Rows) -> None:
        self._names = names
        self._rows = rows
        self._erased: defaultdict[int, set[int]] = defaultdict(set)
        """Row -> positions in its parcel that nobody needs."""
        self._spare: Cell | None = None
        """Memory of the last write: new pages would take longer to come by than to fill."""

    async def write(self, slots: Sequence[str], cells: Sequence[Cells]) -> list[Locator]:
        locators: dict[int, Locator] = {}
        memory = self._memory_of(num_small(cells, self._rows.packing))
        packed = parcels(cells, self._rows.packing, memory)
        for _, group in itertools.groupby(packed, key=lambda parcel: tuple(parcel.fields)):
            same = list(group)
            rows = await self._names.take(len(same))
            await self._rows.put(rows, [parcel.fields for parcel in same])
            for row, parcel in zip(rows, same, strict=True):
                located = parcel.located(row)
                locators.update(zip(parcel.members, located, strict=True))
        if self._rows.packing.reuses and memory.nbytes <= SPARE:
            self._spare = memory
        return [locators[index] for index in range(len(slots))]

    def _memory_of(self, size: int) -> Cell:
        """For a write; another one that is under way has its own."""
        memory, self._spare = self._spare, None
        return memory if memory is not None and memory.nbytes >= size else np.empty(size, np.uint8)

    async def read(self, wanted: Sequence[Wanted]) -> list[dict[str, Cell] | None]:
        needed: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for each in wanted:
            needed[each.placement.locator.row] |= _fields(each)
        found: dict[int, Mapping[str, Cell]] = {}
        for names, rows in _together((tuple(sorted(sizes)), row) for row, sizes in needed.items()):
            sizes = {name: [needed[row][name] for row in rows] for name in names}
            for row, cells in zip(rows, await self._rows.get(rows, sizes), strict=True):
                if cells is not None:
                    found[row] = cells
        return [_cut_out(each, found.get(each.placement.locator.row)) for each in wanted]

    async def erase(self, wanted: Sequence[Wanted]) -> None:
        done: list[Locator] = []
        for each in wanted:
            locator: Locator | None = each.placement.locator
            if locator is None:
                continue  # not written, or nobody knows where: see `wipe`
            positions = self._erased[locator.row]
            positions.add(locator.position)
            if len(positions) == locator.slots:
                done.append(locator)
        for names, rows in _together((locator.fields, locator.row) for locator in done):
            await self._rows.forget(rows, names)
            for row in rows:
                del self._erased[row]

    async def wipe(self) -> None:
        (newest,) = await self._names.take(1)
        await self._rows.wipe(newest)
        self._erased.clear()

    async def held(self) -> int | None:
        return await self._rows.held()

    async def ping(self) -> None:
        await self._rows.ping()

    def close(self) -> None:
        self._rows.close()


def _together(rows: Iterable[tuple[tuple[str, ...], int]]) -> list[tuple[tuple[str, ...], list[int]]]:
    """Those with the same fields."""
    found: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for names, row in rows:
        found[names].append(row)
    return list(found.items())


def _fields(wanted: Wanted) -> dict[str, int]:
    """Fields of its row that have its columns -> bytes."""
    locator: Locator = wanted.placement.locator
    own = {name: size for name, size in wanted.columns.items() if name not in locator.spans}
    return own if len(own) == len(wanted.columns) else {PACKED: locator.packed, **own}


def _cut_out(wanted: Wanted, row: Mapping[str, Cell] | None) -> dict[str, Cell] | None:
    if row is None:
        return None
    locator: Locator = wanted.placement.locator
    cells: dict[str, Cell] = {}
    for name, size in wanted.columns.items():
        span = locator.spans.get(name)
        cells[name] = row[PACKED][span[0] : span[1]] if span else row[name]
        if cells[name].nbytes != size:
            return None
    return cells
