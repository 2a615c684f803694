"""The wire from the session worker to its host, and to the conductor: length-prefixed JSON with request ids.

To the host it runs over a socketpair: not stdout (Ray prints there), and not in lines (a receipt may be
longer than a reader's line limit). To the conductor it replaces actor calls, which cost an operation several
milliseconds on a small machine.
"""

import asyncio
import itertools
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from ratchet.spec.faults import DriverLost, Fault, RatchetError, Unavailable, as_error, as_fault

_LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 20
"""Receipts are under 64 KiB; anything near this is a defect."""

Handler = Callable[[str, dict[str, Any]], Awaitable[Any]]


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_FRAME:
        raise DriverLost(f"a frame of {length} bytes on the host wire (limit {MAX_FRAME})")
    frame: dict[str, Any] = json.loads(await reader.readexactly(length))
    return frame


def _frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes does not fit the host wire (limit {MAX_FRAME})")
    return _LENGTH.pack(len(body)) + body


class WireClient:
    """Calls over one connection, any number at a time. Once the peer is gone every call is `lost`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        peer: str = "session host",
        lost: type[RatchetError] = DriverLost,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._loss = lost
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._lost = False
        self._receiver = asyncio.create_task(self._receive())

    async def call(self, method: str, params: dict[str, Any], *, deadline: float) -> Any:
        """The peer's answer. Raises its fault, the loss, or Unavailable after `deadline` seconds."""
        if self._lost:
            raise self._gone()
        request = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        try:
            self._writer.write(_frame({"id": request, "method": method, "params": params}))
            return await asyncio.wait_for(future, deadline)
        except TimeoutError:
            raise Unavailable(
                f"the {self._peer} did not answer {method} in {deadline:.0f} s", role=self._peer
            ) from None
        finally:
            self._waiting.pop(request, None)

    @property
    def lost(self) -> bool:
        """The peer is gone."""
        return self._lost

    async def closed_within(self, seconds: float) -> bool:
        """Whether the peer is gone, at the latest after so many seconds."""
        await asyncio.wait([self._receiver], timeout=seconds)
        return self._lost

    def close(self) -> None:
        self._receiver.cancel()
        self._writer.close()
        self._fail_all()

    async def _receive(self) -> None:
        try:
            while True:
                answer = await _read(self._reader)
                future = self._waiting.get(answer["id"])
                if future is None or future.done():
                    continue  # its caller gave up at the deadline
                if "fault" in answer:
                    future.set_exception(as_error(Fault.model_validate(answer["fault"])))
                else:
                    future.set_result(answer["result"])
        except (asyncio.IncompleteReadError, ConnectionError, DriverLost):
            pass  # the peer is gone; said to every caller below
        finally:
            self._fail_all()

    def _gone(self) -> RatchetError:
        return self._loss(f"the {self._peer} is gone", role=self._peer)

    def _fail_all(self) -> None:
        self._lost = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._gone())


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    """Answer requests, each in its own task, until the peer is gone."""
    tasks: set[asyncio.Task[None]] = set()

    async def answer(request: dict[str, Any]) -> None:
        try:
            reply: dict[str, Any] = {
                "id": request["id"],
                "result": await handler(request["method"], request["params"]),
            }
        except Exception as error:
            reply = {"id": request["id"], "fault": as_fault(error).model_dump(mode="json")}
        try:
            frame = _frame(reply)
        except ValueError as error:  # too long; its caller must not wait for what cannot come
            frame = _frame({"id": request["id"], "fault": as_fault(error).model_dump(mode="json")})
        writer.write(frame)

    try:
        while True:
            task = asyncio.create_task(answer(await _read(reader)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        for task in tasks:
            task.cancel()
        writer.close()
