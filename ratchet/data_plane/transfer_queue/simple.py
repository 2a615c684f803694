"""Rows in TransferQueue's own storage units.

The units are spoken to in the library's messages, and not through its storage manager: that one wraps and
unwraps every column as a nested tensor and tells the controller of each row, which costs a small put more
than the trip.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType

from ratchet.data_plane.columns import Cell
from ratchet.data_plane.transfer_queue.bounded import Gone, bounded
from ratchet.data_plane.transfer_queue.parcels import Packing

KEY_NOT_FOUND = "[TQKeyNotFound]"


class UnitRows:
    """Rows, each on the unit that its number says."""

    packing = Packing(large=2**18, parcel=2**20, reuses=True)

    def __init__(self, client: Any) -> None:
        self._client = client
        self._manager = client.storage_manager
        self._units: list[Any] = list(self._manager.storage_unit_infos.values())

    async def put(self, rows: Sequence[int], cells: Sequence[Mapping[str, Cell]]) -> None:
        async def put(unit: Any, places: Sequence[int]) -> None:
            data = {name: [cells[place][name] for place in places] for name in cells[0]}
            num_bytes = sum(cell.nbytes for of_column in data.values() for cell in of_column)
            body = {"global_indexes": [rows[place] for place in places], "data": data, "data_parser": None}
            await bounded("write", self._ask(unit, ZMQRequestType.PUT_DATA, body), num_bytes)

        await asyncio.gather(*(put(unit, places) for unit, places in self._routes(rows)))

    async def get(
        self, rows: Sequence[int], fields: Mapping[str, Sequence[int]]
    ) -> list[Mapping[str, Cell] | None]:
        found: list[Mapping[str, Cell] | None] = [None] * len(rows)

        async def get(unit: Any, places: Sequence[int]) -> None:
            body = {"global_indexes": [rows[place] for place in places], "fields": list(fields)}
            num_bytes = sum(sizes[place] for sizes in fields.values() for place in places)
            try:
                answer = await bounded("read", self._ask(unit, ZMQRequestType.GET_DATA, body), num_bytes)
            except Gone:
                if len(places) > 1:  # one of them
                    for place in places:
                        await get(unit, [place])
                return
            for index, place in enumerate(places):
                found[place] = {name: _bytes(answer["data"][name][index]) for name in fields}

        await asyncio.gather(*(get(unit, places) for unit, places in self._routes(rows)))
        return found

    async def forget(self, rows: Sequence[int], fields: Sequence[str]) -> None:
        del fields  # a unit forgets whole rows
        for unit, places in self._routes(rows):
            body = {"global_indexes": [rows[place] for place in places]}
            await bounded("erase", self._ask(unit, ZMQRequestType.CLEAR_DATA, body))

    async def wipe(self, newest: int) -> None:
        await self.forget(range(newest + 1), ())

    async def held(self) -> int:
        return sum([(await self._look(unit))["active_keys"] for unit in self._units])

    async def ping(self) -> None:
        await bounded("answer", self._client.async_get_partition_list())
        for unit in self._units:
            await self._look(unit)

    def close(self) -> None:
        self._client.close()

    async def _look(self, unit: Any) -> Mapping[str, Any]:
        return await bounded("answer", self._ask(unit, ZMQRequestType.GET_METRICS, {}))

    def _routes(self, rows: Sequence[int]) -> list[tuple[Any, list[int]]]:
        """Each unit with the places of its rows."""
        places: list[list[int]] = [[] for _ in self._units]
        for place, row in enumerate(rows):
            places[row % len(self._units)].append(place)
        return [(unit, of_unit) for unit, of_unit in zip(self._units, places, strict=True) if of_unit]

    async def _ask(self, unit: Any, what: Any, body: Mapping[str, Any]) -> Mapping[str, Any]:
        request = ZMQMessage.create(
            request_type=what,
            sender_id=self._manager.storage_manager_id,
            receiver_id=unit.id,
            body=dict(body),
        )
        async with self._manager.storage_rpc_pool.alease(unit) as socket:
            await socket.send_multipart(request.serialize(), copy=False)
            answer = ZMQMessage.deserialize(await socket.recv_multipart(copy=False))
        if "ERROR" in answer.request_type.name:
            message = str(answer.body.get("message"))
            raise Gone(message) if KEY_NOT_FOUND in message else RuntimeError(message)
        return answer.body


def _bytes(value: Any) -> Cell:
    return np.asarray(value).reshape(-1).view(np.uint8)
