"""Where cells are kept. A backend is a Storage; leases, acks and tags are the ledger's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ratchet.data_plane.batch import Placement
from ratchet.data_plane.columns import Cell
from ratchet.data_plane.wire import Wired

Cells = Mapping[str, Cell]
"""Column -> bytes. No cell is empty: columns without bytes are not stored."""


@dataclass(frozen=True, slots=True)
class Wanted(Wired):
    """Cells of one slot."""

    placement: Placement
    columns: Mapping[str, int]
    """Column -> number of bytes that were put."""


class Storage(Protocol):
    """Raises DataPlaneUnavailable when it is gone, DataPlaneTimeout when it is silent; nothing else of its
    own. Every call ends within its deadline (ratchet.spec.deadlines.DATA_PLANE_*)."""

    async def write(self, slots: Sequence[str], cells: Sequence[Cells]) -> list[Any]:
        """Keep cells under slots nobody has used before. What it returns for each slot, something small that
        can be pickled, comes back as `Placement.locator`. All or an error; what an error leaves is never
        read, and is there until a `wipe`."""
        ...

    async def read(self, wanted: Sequence[Wanted]) -> list[dict[str, Cell] | None]:
        """The cells of each slot, None for a slot of which any is lost: absent, or of another length."""
        ...

    async def erase(self, wanted: Sequence[Wanted]) -> None:
        """Forget slots. After it they take no room. Unknown ones are no error."""
        ...

    async def wipe(self) -> None:
        """Forget everything, what nobody can name included."""
        ...

    async def held(self) -> int | None:
        """Slots it keeps, if it can tell."""
        ...

    async def ping(self) -> None:
        """Returns if its real request path works, every part of it."""
        ...

    def close(self) -> None:
        """Let go of connections. Nothing is erased."""
        ...
