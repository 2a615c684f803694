"""The session worker's way to the conductor: the host says where it is, a wire of its own goes there."""

import asyncio
import logging

from ratchet.sessions.wire import WireClient
from ratchet.spec import deadlines
from ratchet.spec.faults import DriverLost, RatchetError, Unavailable

logger = logging.getLogger(__name__)

ROLE = "conductor"


class ConductorWire:
    """A connection to the conductor that one host made or found; it ends with that host's own."""

    def __init__(self, host: WireClient) -> None:
        self._host = host
        self._wire: WireClient | None = None
        self._connecting = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def connected(self) -> WireClient | None:
        """The wire; None while the session's actors start. Raises what keeps them from coming up."""
        async with self._connecting:
            if self._wire is None or self._wire.lost:
                self._wire = await self._connect()
            return self._wire

    def close(self) -> None:
        if self._watch:
            self._watch.cancel()
        if self._wire:
            self._wire.close()
            self._wire = None

    async def _connect(self) -> WireClient | None:
        wait = deadlines.POLL_WAIT
        door = await self._host.call("conductor", {"wait": wait}, deadline=wait + deadlines.HOST_CALL)
        if door is None:
            return None
        try:
            streams = await asyncio.wait_for(
                asyncio.open_connection(door["host"], door["port"]), deadlines.HOST_CALL
            )
        except (OSError, TimeoutError):
            await self._replace(door["secret"])
            return None
        wire = WireClient(*streams, peer=ROLE, lost=DriverLost)
        try:
            await wire.call("hello", {"secret": door["secret"]}, deadline=deadlines.HOST_CALL)
        except (DriverLost, Unavailable):
            wire.close()
            await self._replace(door["secret"])
            return None
        self._watch = asyncio.create_task(self._until_gone(wire, door["secret"]), name="watch conductor")
        return wire

    async def _until_gone(self, wire: WireClient, secret: str) -> None:
        """Pings, since a frozen conductor keeps its connection open; then has it replaced."""
        why = "its connection ended"
        try:
            while not await wire.closed_within(deadlines.ENGINE_PING_EVERY):
                await wire.call("ping", {}, deadline=deadlines.ENGINE_SILENT)
        except RatchetError as silent:
            why = str(silent)
        logger.error("the conductor is lost (%s): another one takes over", why)
        if self._wire is wire:
            self._wire = None
        wire.close()
        try:
            await self._replace(secret)
        except RatchetError as error:
            # `connected` will find nobody there, and ask again.
            logger.warning("the conductor cannot be replaced now: %s", error)

    async def _replace(self, secret: str) -> None:
        await self._host.call("replace", {"secret": secret}, deadline=deadlines.HOST_CALL)
