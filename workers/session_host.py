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

from ratchet.sessions.wire import serve
from ratchet.spec import deadlines
from ratchet.spec.control import SessionRequest
from ratchet.spec.faults import ActorLost, Conflict, RatchetError
from ratchet.spec.home import Home
from ratchet.spec.ids import RAY_NAMESPACE
from ratchet.spec.stack import StackState

logger = logging.getLogger(__name__)

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
        self._conductor: Any = None
        self._connecting = asyncio.Lock()

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "ping":
                return "pong"
            case "ready":
                await self._warm_up()
                return "ready"
            case "submit":
                return await self._ask("submit", deadlines.HOST_CALL, params["args"])
            case "poll":
                wait: float = params["wait"]
                return await self._ask("poll", wait + deadlines.HOST_CALL, params["op"], wait)
            case "cancel":
                return await self._ask("cancel", deadlines.CANCEL, params["op"])
            case _:
                raise Conflict(f"the session host knows no method {method!r}")

    async def _warm_up(self) -> None:
        """Make the session's actors. An error here is not the host's: whoever submits first gets it."""
        try:
            await self._connected()
        except RatchetError as error:
            logger.error("the session's actors did not come up: %s", error)

    async def _ask(self, method: str, deadline: float, *args: Any) -> Any:
        from workers.actors.calls import ask

        for last in (False, True):
            conductor = await self._connected()
            try:
                return await ask(getattr(conductor, method).remote(*args), "conductor", deadline)
            except ActorLost as lost:
                if last or lost.role != "conductor":
                    raise
                self._conductor = None  # replaced in place; it reads its log back from the actors
        raise AssertionError("unreachable")

    async def _connected(self) -> Any:
        from workers.actors.base import get_or_create
        from workers.actors.calls import ask
        from workers.actors.conductor import ROLE, ConductorActor

        async with self._connecting:
            if self._conductor is None:
                conductor = await asyncio.to_thread(get_or_create, ConductorActor, self._config, ROLE, 0)
                await ask(conductor.ready.remote(), ROLE, deadlines.ACTOR_START)
                self._conductor = conductor
            return self._conductor


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
