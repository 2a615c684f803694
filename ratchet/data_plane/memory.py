"""Cells in the memory of one process."""

from collections.abc import Sequence

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.storage import Cells, Wanted


class MemoryStorage:
    """A dict. What is read is what was written, not a copy of it: nobody writes to a finished group."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[str, Cell]] = {}

    async def write(self, slots: Sequence[str], cells: Sequence[Cells]) -> list[None]:
        for slot, of_slot in zip(slots, cells, strict=True):
            self._cells[slot] = dict(of_slot)
        return [None] * len(slots)

    async def read(self, wanted: Sequence[Wanted]) -> list[dict[str, Cell] | None]:
        return [self._read(each) for each in wanted]

    def _read(self, wanted: Wanted) -> dict[str, Cell] | None:
        cells = self._cells.get(wanted.placement.slot, {})
        if any(name not in cells or cells[name].nbytes != size for name, size in wanted.columns.items()):
            return None
        return {name: cells[name] for name in wanted.columns}

    async def erase(self, wanted: Sequence[Wanted]) -> None:
        for each in wanted:
            self._cells.pop(each.placement.slot, None)

    async def wipe(self) -> None:
        self._cells.clear()

    async def held(self) -> int:
        return len(self._cells)

    async def ping(self) -> None:
        pass

    def close(self) -> None:
        pass
