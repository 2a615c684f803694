"""The side of a data plane that there is one of: its ledger, and whoever erases what nobody needs."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ratchet.data_plane.errors import DataPlaneError, DataPlaneUnavailable
from ratchet.data_plane.ledger import Ledger
from ratchet.data_plane.partition import ROLE
from ratchet.data_plane.storage import Cells, Storage, Wanted

log = logging.getLogger(__name__)

OWN_METHODS = ("ping", "clear", "write", "read", "erase", "wipe", "held")
ERASE_EVERY = 0.5
"""Seconds. What takes room and is not needed any more does so for about this long."""


class Owner:
    """A ledger and its storage. `call` is what clients reach."""

    def __init__(self, ledger: Ledger, storage: Storage) -> None:
        self._ledger = ledger
        self._storage = storage
        self._erasing = asyncio.Lock()

    async def call(self, method: str, *arguments: Any) -> Any:
        """A method of this one, or else of the ledger."""
        own = getattr(self, f"_{method}", None)
        return await own(*arguments) if own else getattr(self._ledger, method)(*arguments)

    async def keep_erasing(self) -> None:
        """Until cancelled. A storage that is gone is noticed by whoever needs it."""
        while True:
            await asyncio.sleep(ERASE_EVERY)
            try:
                await self.erase_doomed()
            except DataPlaneError as error:
                log.warning("what nobody needs could not be erased: %s", error)

    async def erase_doomed(self) -> None:
        async with self._erasing:
            if wanted := self._ledger.doomed():
                await self._storage.erase(wanted)
                self._ledger.erased(wanted)

    async def _ping(self) -> None:
        await self._storage.ping()

    async def _clear(self, partition: str) -> None:
        self._ledger.clear(partition)
        await self.erase_doomed()
        if self._idle() and await self._storage.held() != 0:
            # Of a producer that died, or gave up, between its write and the ledger: nobody knows where.
            await self._storage.wipe()
            held = await self._storage.held()
            if held and self._idle():
                raise DataPlaneUnavailable(
                    f"the storage keeps {held} slots after everything was erased", role=ROLE
                )

    def _idle(self) -> bool:
        parts = self._ledger.stats().values()
        return not any(part["groups"] or part["writing"] or part["erasing"] for part in parts)

    # --- a storage in this process, for those outside it

    async def _write(self, slots: Sequence[str], cells: Sequence[Cells]) -> list[Any]:
        return await self._storage.write(slots, cells)

    async def _read(self, wanted: Sequence[Wanted]) -> list[Any]:
        return await self._storage.read(wanted)

    async def _erase(self, wanted: Sequence[Wanted]) -> None:
        await self._storage.erase(wanted)

    async def _wipe(self) -> None:
        await self._storage.wipe()

    async def _held(self) -> int | None:
        return await self._storage.held()
