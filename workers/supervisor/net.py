"""Asking servers whether they are there, each question bounded in time."""

import asyncio
import contextlib
import http.client
import time
import urllib.request
from collections.abc import Awaitable, Callable

from ratchet.spec.faults import SpecError, Unavailable

MAX_PORT = 65535
_PAUSE = 0.05
_CONNECT_WITHIN = 2.0


def host_and_port(address: str, flag: str) -> tuple[str, int]:
    """The parts of HOST:PORT. Raises SpecError, naming the flag."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= MAX_PORT:
        raise SpecError(f"{flag} {address!r} is not HOST:PORT, like 127.0.0.1:7233")
    return host.strip("[]"), int(port)


async def accepts(host: str, port: int) -> bool:
    """Whether somebody accepts TCP connections there."""
    try:
        async with asyncio.timeout(_CONNECT_WITHIN):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def http_ok(url: str) -> bool:
    """Whether GET answers 200. Never through a proxy: it is this machine that is asked."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get() -> bool:
        with opener.open(url, timeout=_CONNECT_WITHIN) as answer:
            return answer.status == 200

    with contextlib.suppress(OSError, http.client.HTTPException):  # HTTPError and URLError are OSErrors
        return await asyncio.to_thread(get)
    return False


async def eventually(question: Callable[[], Awaitable[bool]], within: float, complaint: str) -> None:
    """Ask until the answer is yes. Raises Unavailable with the complaint after `within` seconds."""
    deadline = time.monotonic() + within
    while not await question():
        if time.monotonic() > deadline:
            raise Unavailable(f"{complaint} (waited {within:.0f} s)")
        await asyncio.sleep(_PAUSE)
