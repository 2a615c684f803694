"""The session host: the Ray driver of a session, child of its session worker.

Ray may end a driver hard, with no exception; that is why it is a process of its own, and why nothing lives in
it. It makes the session's actors and tells its parent where the conductor answers, over an inherited socket;
operations then go straight from the session worker to the conductor. It ends with its parent.
"""

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ratchet.sessions.wire import serve
from ratchet.spec.control import SessionRequest
from ratchet.spec.faults import Conflict
from ratchet.spec.home import Home
from ratchet.spec.ids import RAY_NAMESPACE
from ratchet.spec.stack import StackState
from ratchet.telemetry import logs

if TYPE_CHECKING:
    from workers.actors.conductor import Door

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent goes; EOF on the wire covers what this misses."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Host:
    """Makes the conductor, which makes the rest; and another one when it is gone."""

    def __init__(self, request: SessionRequest, home: Home) -> None:
        from workers.actors.base import SessionConfig

        self._config = SessionConfig(request.run, request.session, request.spec, str(home.root))
        self._making: asyncio.Task[Door] | None = None

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "ping":
                return "pong"
            case "ready":
                self._make()  # the actors start while nobody waits for them yet
                return "ready"
            case "conductor":
                return await self._door(params["wait"])
            case "replace":
                return await self._replace(params["secret"])
            case _:
                raise Conflict(f"the session host knows no method {method!r}")

    async def _door(self, wait: float) -> dict[str, Any] | None:
        """Where the conductor answers; None while its actors start. Raises what kept them from coming up; the
        next call tries again."""
        making = self._make()
        await asyncio.wait([making], timeout=wait)
        if not making.done():
            return None
        if making.exception() is not None:
            self._making = None
        return asdict(making.result())

    async def _replace(self, secret: str) -> None:
        """The conductor with that secret is gone, or does not answer: end it and make another, which reads
        its log back from the actors."""
        making = self._making
        if making is None or not making.done() or making.exception() or making.result().secret != secret:
            return  # that one is replaced already
        from workers.actors.conductor import ROLE
        from workers.actors.making import kill

        self._making = None
        await asyncio.to_thread(kill, self._config, ROLE)
        self._make()

    def _make(self) -> "asyncio.Task[Door]":
        if self._making is None:
            self._making = asyncio.create_task(self._made())
        return self._making

    async def _made(self) -> "Door":
        from workers.actors.conductor import ROLE, ConductorActor
        from workers.actors.making import found_or_made

        _, door = await found_or_made(ConductorActor, self._config, ROLE, lambda actor: actor.ready.remote())
        return door


async def _serve(host: Host, wire: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=wire)
    await serve(reader, writer, host.handle)


def main() -> None:
    """`python -m workers.session_host --run RUN --session N --wire FD`"""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--session", type=int, required=True)
    parser.add_argument("--wire", type=int, required=True)
    options = parser.parse_args()
    die_with_parent()
    logs.configure("host", run=options.run, incarnation=options.session)
    home = Home()
    request_file = home.session_folder(options.run, options.session) / "request.json"
    request = SessionRequest.model_validate_json(request_file.read_text())
    address = StackState.load(home).ray_address
    os.environ.pop("RAY_ADDRESS", None)

    import ray

    # Before the event loop, and bounded by whoever started us: ray.init never fails fast.
    ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    asyncio.run(_serve(Host(request, home), socket.socket(fileno=options.wire)))


if __name__ == "__main__":
    main()
