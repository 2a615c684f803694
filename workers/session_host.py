"""The session host: the Ray driver of a session, child of its session worker.

Ray may end a driver hard, with no exception; that is why it is a process of its own, and why nothing lives in
it. It answers `submit`, `poll`, `cancel` and `ping` over an inherited socket, and ends with its parent.
"""

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from typing import Any

from ratchet.sessions.wire import WireClient, serve
from ratchet.spec import deadlines
from ratchet.spec.control import SessionRequest
from ratchet.spec.faults import ActorLost, Conflict, Unavailable
from ratchet.spec.home import Home
from ratchet.spec.ids import RAY_NAMESPACE, OpId
from ratchet.spec.operations import OpAnswer, OpState
from ratchet.spec.stack import StackState

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent goes; EOF on the wire covers what this misses."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Host:
    """Forwards calls to the conductor, and makes a new one when it is gone."""

    def __init__(self, request: SessionRequest, home: Home) -> None:
        from workers.actors.base import SessionConfig

        self._config = SessionConfig(request.run, request.session, request.spec, str(home.root))
        self._connecting: asyncio.Task[WireClient] | None = None

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "ping":
                return "pong"
            case "ready":
                self._connection()  # the actors start while nobody waits for them yet
                return "ready"
            case "submit":
                op = str(OpId.model_validate(params["args"]["op"]))
                return await self._ask(method, op, params, params["wait"] + deadlines.HOST_CALL)
            case "poll":
                return await self._ask(method, params["op"], params, params["wait"] + deadlines.HOST_CALL)
            case "cancel":
                return await self._ask(method, params["op"], params, deadlines.CANCEL)
            case _:
                raise Conflict(f"the session host knows no method {method!r}")

    async def _ask(self, method: str, op: str, params: dict[str, Any], deadline: float) -> Any:
        """The conductor's answer; `absent` while its actors still start: callers hear of it."""
        for last in (False, True):
            await asyncio.wait([self._connection()], timeout=deadlines.POLL_WAIT)
            if not self._connection().done():
                starting = OpAnswer(op=op, state=OpState.ABSENT, progress="the session's actors start")
                return starting.model_dump(mode="json")
            try:
                return await self._connected().call(method, params, deadline=deadline)
            except ActorLost as lost:
                if last or lost.role != "conductor":
                    raise
                self._connecting = None  # replaced in place; it reads its log back from the actors
        raise AssertionError("unreachable")

    def _connection(self) -> asyncio.Task[WireClient]:
        """The making of the session's actors: under way, or ended with a wire to the conductor."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        return self._connecting

    def _connected(self) -> WireClient:
        """The wire to the conductor. Raises what kept the actors from coming up; a next call tries again."""
        connection = self._connection()
        if connection.exception() is not None:
            self._connecting = None
        return connection.result()

    async def _connect(self) -> WireClient:
        from workers.actors.base import get_or_create
        from workers.actors.calls import ask
        from workers.actors.conductor import ROLE, ConductorActor

        conductor = await asyncio.to_thread(get_or_create, ConductorActor, self._config, ROLE)
        endpoint = await ask(conductor.ready.remote(), ROLE, deadlines.ACTOR_START)
        try:
            streams = await asyncio.open_connection(endpoint.host, endpoint.port)
        except OSError as error:
            raise Unavailable(f"the conductor does not listen at {endpoint.host}:{endpoint.port}") from error
        wire = WireClient(*streams, peer=ROLE, lost=ActorLost)
        await wire.call("hello", {"secret": endpoint.secret}, deadline=deadlines.HOST_CALL)
        return wire


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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s host %(levelname)s %(message)s")
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
