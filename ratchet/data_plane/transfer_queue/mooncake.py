"""Rows in Mooncake's store, whose memory is that of the owner: producers may go."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.errors import DataPlaneUnavailable
from ratchet.data_plane.partition import ROLE
from ratchet.data_plane.transfer_queue.bounded import bounded, tensor
from ratchet.data_plane.transfer_queue.parcels import Packing

Result = TypeVar("Result")


class MooncakeRows:
    """Written by TransferQueue's client, read from the store itself.

    The client takes a read of no bytes for a good one: what it then returns is whatever the memory held.
    That is how the store answers for a segment whose process has died.
    """

    packing = Packing(large=2**18, parcel=2**20, reuses=True)

    def __init__(self, client: Any) -> None:
        self._client = client
        self._keys = client.storage_manager.storage_client
        self._store = self._keys._store
        self._threads = ThreadPoolExecutor(4, "mooncake")

    async def put(self, rows: Sequence[int], cells: Sequence[Mapping[str, Cell]]) -> None:
        pairs = [
            (f"{row}@{name}", cell)
            for row, of_row in zip(rows, cells, strict=True)
            for name, cell in of_row.items()
        ]
        num_bytes = sum(cell.nbytes for _, cell in pairs)
        values = [tensor(cell) for _, cell in pairs]
        await bounded(
            "write", self._in_a_thread(lambda: self._keys.put([key for key, _ in pairs], values)), num_bytes
        )

    async def get(
        self, rows: Sequence[int], fields: Mapping[str, Sequence[int]]
    ) -> list[Mapping[str, Cell] | None]:
        keys = [f"{row}@{name}" for name in fields for row in rows]
        sizes = [size for name in fields for size in fields[name]]
        cells = await bounded("read", self._in_a_thread(lambda: self._read(keys, sizes)), sum(sizes))
        by_field = {name: cells[index * len(rows) :][: len(rows)] for index, name in enumerate(fields)}
        return [_whole({name: by_field[name][place] for name in fields}) for place in range(len(rows))]

    def _read(self, keys: Sequence[str], sizes: Sequence[int]) -> list[Cell | None]:
        memory = np.empty(sum(sizes), np.uint8)
        ends = np.cumsum(sizes)
        cells = np.split(memory, ends[:-1])
        self._store.register_buffer(memory.ctypes.data, memory.nbytes)
        try:
            read = self._store.batch_get_into(list(keys), [cell.ctypes.data for cell in cells], list(sizes))
        finally:
            self._store.unregister_buffer(memory.ctypes.data)
        return [cell if count == size else None for cell, count, size in zip(cells, read, sizes, strict=True)]

    async def forget(self, rows: Sequence[int], fields: Sequence[str]) -> None:
        keys = [f"{row}@{name}" for name in fields for row in rows]
        await bounded("erase", self._in_a_thread(lambda: self._keys.clear(keys)))

    async def wipe(self, newest: int) -> None:
        del newest  # the master is the session's own
        await bounded("erase", self._in_a_thread(lambda: self._store.remove_all(True)))  # leased ones too

    async def held(self) -> None:
        return None

    async def ping(self) -> None:
        await bounded("answer", self._client.async_get_partition_list())
        await bounded("answer", self._in_a_thread(self._look))

    def _look(self) -> None:
        if (code := self._store.is_exist("ratchet")) < 0:
            raise DataPlaneUnavailable(f"Mooncake's master does not answer (code {code})", role=ROLE)

    def close(self) -> None:
        self._client.close()
        threading.Thread(target=self._close_when_left, name="mooncake-close", daemon=True).start()

    def _close_when_left(self) -> None:
        # A call that was given up is still in the store: to close it then takes the process down.
        self._threads.shutdown()
        self._keys.close()

    async def _in_a_thread(self, work: Callable[[], Result]) -> Result:
        """The store blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _whole(cells: Mapping[str, Cell | None]) -> Mapping[str, Cell] | None:
    there = {name: cell for name, cell in cells.items() if cell is not None}
    return there if len(there) == len(cells) else None
