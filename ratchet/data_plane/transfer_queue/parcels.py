"""Small cells travel together: each field of the library's rows costs about as much as 100 KiB of bytes, and
an object of Ray's much more. Large ones travel as they are, since to copy them would cost more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.storage import Cells
from ratchet.data_plane.wire import Wired

PACKED = "(packed)"
"""The field with a row's small cells. Large ones have fields of their own, by the names of their columns."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Sizes in bytes that suit a kind of rows."""

    large: int
    """Of a cell that travels as it is."""
    parcel: int
    """Of small slots in one row. Whoever reads one reads them all: this bounds what is read in vain."""
    reuses: bool
    """Whether what was put is a copy, so that the memory of one parcel can be that of the next."""


@dataclass(frozen=True, slots=True)
class Locator(Wired):
    """Where a slot is."""

    row: int
    """Of the library: its global index."""
    position: int
    """Of the slot among those of the row."""
    slots: int
    """In the row."""
    fields: tuple[str, ...]
    """Of the row."""
    packed: int
    """Bytes of the packed field."""
    spans: Mapping[str, tuple[int, int]]
    """Column -> where it begins and ends in the packed field; not for those that have fields of their own."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A slot with large cells, or small slots."""

    members: tuple[int, ...]
    """Positions among the slots of the write."""
    fields: Mapping[str, Cell]
    spans: tuple[Mapping[str, tuple[int, int]], ...]
    """Of each member."""

    def located(self, row: int) -> list[Locator]:
        fields = tuple(self.fields)
        packed = self.fields[PACKED].nbytes if PACKED in fields else 0
        return [
            Locator(row, position, len(self.members), fields, packed, spans)
            for position, spans in enumerate(self.spans)
        ]


def parcels(cells: Sequence[Cells], packing: Packing, memory: Cell) -> list[Parcel]:
    """Slots in parcels, each slot in one. Small cells are copied to `memory`, which has room for them all."""
    large = [
        {name: cell for name, cell in of_slot.items() if cell.nbytes >= packing.large} for of_slot in cells
    ]
    small = [
        {name: cell for name, cell in of_slot.items() if cell.nbytes < packing.large} for of_slot in cells
    ]
    sizes = [sum(cell.nbytes for cell in of_slot.values()) for of_slot in small]
    packed: list[Parcel] = []
    for members in _together(sizes, [bool(of_slot) for of_slot in large], packing.parcel):
        size = sum(sizes[member] for member in members)
        packed.append(_packed(members, small, large[members[0]], memory[:size]))
        memory = memory[size:]
    return packed


def num_small(cells: Sequence[Cells], packing: Packing) -> int:
    """Bytes of the cells that are packed."""
    sizes = (cell.nbytes for of_slot in cells for cell in of_slot.values())
    return sum(size for size in sizes if size < packing.large)


def _together(sizes: Sequence[int], alone: Sequence[bool], parcel: int) -> Iterator[list[int]]:
    """Slots of one row each: those that go alone, then the others in order."""
    yield from ([index] for index, by_itself in enumerate(alone) if by_itself)
    members: list[int] = []
    room = parcel
    for index, size in enumerate(sizes):
        if alone[index]:
            continue
        if members and size > room:
            yield members
            members, room = [], parcel
        members.append(index)
        room -= size
    if members:
        yield members


def _packed(members: Sequence[int], small: Sequence[Cells], large: Cells, memory: Cell) -> Parcel:
    parts: list[Cell] = []
    spans: list[dict[str, tuple[int, int]]] = []
    end = 0
    for member in members:
        spans.append({})
        for name, cell in small[member].items():
            spans[-1][name] = (end, end + cell.nbytes)
            parts.append(cell)
            end += cell.nbytes
    fields = {PACKED: np.concatenate(parts, out=memory), **large} if parts else dict(large)
    return Parcel(tuple(members), fields, tuple(spans))
