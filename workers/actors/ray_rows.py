"""Rows as objects of Ray: bytes stay with who put them, and go from there by Ray Direct Transport."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.errors import DataPlaneUnavailable
from ratchet.data_plane.partition import ROLE
from ratchet.data_plane.transfer_queue.bounded import Gone, bounded, tensor
from ratchet.data_plane.transfer_queue.connection import Connection, open_client
from ratchet.data_plane.transfer_queue.parcels import Packing
from ratchet.data_plane.transfer_queue.rows import RowNames
from ratchet.data_plane.transfer_queue.storage import TransferQueueStorage
from ratchet.spec import deadlines
from ratchet.spec.ids import RAY_NAMESPACE
from workers.actors.nixl_progress import rest_between_looks

TRANSPORT = "nixl"


def open_ray_storage(connection: Connection, name: str) -> TransferQueueStorage:
    """As open_storage, for the backend `ray`."""
    rest_between_looks()
    # A process's first transfer makes its NIXL agent, and so does the first reference that the keeper gets:
    # that takes seconds, and not in somebody's put.
    try:
        objects = ray.get_actor(connection.config["objects"], namespace=RAY_NAMESPACE)
        first = ray.put(torch.zeros(1), _tensor_transport=TRANSPORT)
        ray.get(first, timeout=deadlines.DATA_PLANE_START)
        ray.get(objects.put_obj_ref.remote([name], [first]), timeout=deadlines.DATA_PLANE_START)
        ray.get(objects.clear_obj_ref.remote([name]), timeout=deadlines.DATA_PLANE_START)
    except (RayError, ValueError) as error:
        raise DataPlaneUnavailable(f"ray cannot be reached: {error}", role=ROLE) from error
    client = open_client(connection, name)
    return TransferQueueStorage(RowNames(client), RayRows(client, objects))


class RayRows:
    """References are kept by the library's RayObjectRefStorage, one for each session: the library's own
    client has one for all that run in a cluster. An object is lost with the process that put it."""

    packing = Packing(large=2**22, parcel=2**22, reuses=False)

    def __init__(self, client: Any, objects: Any) -> None:
        """`objects`: handle of the actor that keeps the references."""
        self._client = client
        self._objects = objects

    async def put(self, rows: Sequence[int], cells: Sequence[Mapping[str, Cell]]) -> None:
        keys = [f"{row}@{name}" for row, of_row in zip(rows, cells, strict=True) for name in of_row]
        values = [tensor(cell) for of_row in cells for cell in of_row.values()]
        num_bytes = sum(value.nbytes for value in values)
        refs = [ray.put(value, _tensor_transport=TRANSPORT) for value in values]
        await bounded("write", _awaited(self._objects.put_obj_ref.remote(keys, refs)), num_bytes)

    async def get(
        self, rows: Sequence[int], fields: Mapping[str, Sequence[int]]
    ) -> list[Mapping[str, Cell] | None]:
        keys = [f"{row}@{name}" for row in rows for name in fields]
        refs = await bounded("find", _awaited(self._objects.get_obj_ref.remote(keys)))
        width = len(fields)
        sizes = [sum(of_field[place] for of_field in fields.values()) for place in range(len(rows))]
        return [
            await self._row(refs[place * width : (place + 1) * width], fields, sizes[place])
            for place in range(len(rows))
        ]

    async def _row(
        self, refs: Sequence[Any], fields: Mapping[str, Sequence[int]], num_bytes: int
    ) -> Mapping[str, Cell] | None:
        if any(ref is None for ref in refs):
            return None
        try:
            within = deadlines.DATA_PLANE_CALL + num_bytes / deadlines.DATA_PLANE_BYTES_PER_S
            values = await bounded("read", asyncio.to_thread(_values, refs, within), num_bytes)
        except Gone:
            return None
        return {name: value.numpy() for name, value in zip(fields, values, strict=True)}

    async def forget(self, rows: Sequence[int], fields: Sequence[str]) -> None:
        keys = [f"{row}@{name}" for row in rows for name in fields]
        await bounded("erase", _awaited(self._objects.clear_obj_ref.remote(keys)))

    async def wipe(self, newest: int) -> None:
        del newest  # the keeper is the session's own
        await bounded("erase", _awaited(self._objects.__ray_call__.remote(_forget_all)))

    async def held(self) -> int:
        return await bounded("count", _awaited(self._objects.__ray_call__.remote(_count)))

    async def ping(self) -> None:
        await bounded("answer", self._client.async_get_partition_list())
        await bounded("answer", _awaited(self._objects.get_obj_ref.remote([])))

    def close(self) -> None:
        self._client.close()


async def _awaited(ref: Any) -> Any:
    return await ref


def _forget_all(keeper: Any) -> None:
    keeper.storage_dict.clear()


def _count(keeper: Any) -> int:
    return len(keeper.storage_dict)


def _values(refs: Sequence[Any], within: float) -> list[torch.Tensor]:
    try:
        return ray.get(list(refs), timeout=within)
    except RayError as error:  # whoever put them has died, and took them along
        raise Gone(str(error)) from error
