"""Lines for those who have an event loop: the other end is the same LineServer (see lines.py)."""

import asyncio
import os
import pickle
import socket
import struct
from multiprocessing import AuthenticationError
from typing import Any

from ratchet.spec import deadlines
from ratchet.spec.faults import ActorLost, RatchetError, Unavailable
from workers.actors.lines import Endpoint, connect, reason

_SHORT, _LONG = struct.Struct("!i"), struct.Struct("!Q")
_LONGEST_SHORT = 0x7FFFFFFF
"""Frames are those of multiprocessing.connection: a signed length, or -1 and a longer one."""


class AsyncLine:
    """One connection to a lane of an actor; calls come one after the other. Of one event loop."""

    def __init__(
        self, endpoint: Endpoint, role: str, lane: str, *, lost: type[RatchetError] = ActorLost
    ) -> None:
        self._endpoint = endpoint
        self._role = role
        self._lane = lane
        self._loss = lost
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._due = 0
        """Calls posted whose answers nobody has looked at."""

    async def call(self, method: str, *arguments: Any, deadline: float) -> Any:
        """The method's result. Raises its fault, `lost` once the actor is gone, or Unavailable after
        `deadline` seconds; the call may then still be under way."""
        async with self._turn:
            try:
                async with asyncio.timeout(deadline):
                    result, fault = await self._exchange((self._lane, method, arguments))
            except TimeoutError:
                self.close()  # a late answer must not be taken for the next call's
                message = f"the {self._role} did not answer {method} within {deadline:.0f} s"
                raise Unavailable(message, role=self._role) from None
            except (AuthenticationError, EOFError, OSError) as error:
                self.close()
                raise self._loss(f"the {self._role} is gone: {reason(error)}", role=self._role) from error
            except BaseException:
                self.close()  # likewise
                raise
        if fault is not None:
            fault.role = fault.role or self._role
            raise fault
        return result

    async def post(self, method: str, *arguments: Any, deadline: float) -> None:
        """Call, and let the next call look at the answer: if it is a fault, that one raises it."""
        async with self._turn:
            try:
                async with asyncio.timeout(deadline):
                    await self._send((self._lane, method, arguments))
            except (TimeoutError, AuthenticationError, EOFError, OSError) as error:
                self.close()
                message = f"the {self._role} takes no {method}: {reason(error)}"
                raise self._loss(message, role=self._role) from error
            self._due += 1

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()
        self._streams, self._due = None, 0

    async def _exchange(self, request: object) -> Any:
        """Its answer; or that of a posted call, if it is a fault: this one is then not looked at."""
        reader = await self._send(request)
        while self._due:
            answer = await _received(reader)
            self._due -= 1
            if answer[1] is not None:
                self.close()
                return answer
        return await _received(reader)

    async def _send(self, request: object) -> asyncio.StreamReader:
        if self._streams is None:
            self._streams = await self._connect()
        reader, writer = self._streams
        body = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        short = len(body) <= _LONGEST_SHORT
        writer.write(_SHORT.pack(len(body)) if short else _SHORT.pack(-1) + _LONG.pack(len(body)))
        writer.write(body)
        await writer.drain()
        return reader

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = await asyncio.to_thread(connect, self._endpoint, deadlines.ENGINE_SILENT)
        try:
            end = socket.socket(fileno=os.dup(connection.fileno()))
        finally:
            connection.close()
        end.setblocking(False)
        return await asyncio.open_connection(sock=end, limit=2**22)


async def _received(reader: asyncio.StreamReader) -> Any:
    (size,) = _SHORT.unpack(await reader.readexactly(_SHORT.size))
    if size == -1:
        (size,) = _LONG.unpack(await reader.readexactly(_LONG.size))
    return pickle.loads(await reader.readexactly(size))
