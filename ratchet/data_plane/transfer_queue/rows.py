"""What keeps a session's parcels: rows of TransferQueue."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.transfer_queue.bounded import bounded
from ratchet.data_plane.transfer_queue.parcels import Packing

PARTITION = "ratchet"
"""The library's. Partitions of the data plane are the ledger's business."""
ROWS_AHEAD = 512
"""Rows that are named at once: a write then need not ask."""


class Rows(Protocol):
    """Every call ends within its deadline; raises DataPlaneUnavailable, DataPlaneTimeout."""

    packing: Packing

    async def put(self, rows: Sequence[int], cells: Sequence[Mapping[str, Cell]]) -> None:
        """Each row has the same fields."""
        ...

    async def get(
        self, rows: Sequence[int], fields: Mapping[str, Sequence[int]]
    ) -> list[Mapping[str, Cell] | None]:
        """`fields`: name -> bytes of each row. None for a row that is not there, or not all of it."""
        ...

    async def forget(self, rows: Sequence[int], fields: Sequence[str]) -> None:
        """`fields`: that they have."""
        ...

    async def wipe(self, newest: int) -> None:
        """Forget every row up to this one."""
        ...

    async def held(self) -> int | None:
        """Rows kept, if that can be told."""
        ...

    async def ping(self) -> None: ...

    def close(self) -> None: ...


class RowNames:
    """Unused row numbers, which only the library's controller gives out."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ahead: list[int] = []
        self._turn = asyncio.Lock()

    async def take(self, count: int) -> list[int]:
        async with self._turn:  # or two writers at once would take the same
            if len(self._ahead) < count:
                asked = self._client.async_get_meta(
                    data_fields=[],
                    batch_size=max(ROWS_AHEAD, count),
                    partition_id=PARTITION,
                    mode="insert",
                )
                self._ahead += (await bounded("name rows", asked)).global_indexes
            taken, self._ahead = self._ahead[:count], self._ahead[count:]
            return taken
