"""The conductor's actor: makes a session's other actors, and carries out its operations."""

import asyncio
import hmac
import os
import secrets
from dataclasses import dataclass
from typing import Any

import ray

from ratchet.sessions.conductor import Conductor
from ratchet.sessions.executor import EngineExecutor
from ratchet.sessions.wire import serve
from ratchet.spec.faults import Conflict
from ratchet.spec.ids import OpId
from ratchet.spec.operations import parse_args
from ratchet.telemetry import tracing
from workers.actors.base import SessionConfig, note_actor
from workers.actors.data_plane import RayDataPlane
from workers.actors.generator import RayGenerator
from workers.actors.trainer import RayTrainer

ROLE = "conductor"


@dataclass(frozen=True, slots=True)
class Door:
    """Where a conductor answers, and the word that opens it."""

    host: str
    port: int
    secret: str


@ray.remote
class ConductorActor:
    """An asyncio actor: nothing in it may block, or `poll` freezes."""

    def __init__(self, config: SessionConfig) -> None:
        config.enter(ROLE)
        self._config = config
        self._door: Door | None = None
        self._starting = asyncio.Lock()

    async def ready(self) -> Door:
        """Make or find the session's actors, and read back what they did. Again: no effect."""
        async with self._starting:
            if self._door is None:
                engines = RayTrainer(self._config), RayGenerator(self._config), RayDataPlane(self._config)
                conductor = Conductor(EngineExecutor(self._config.spec, *engines))
                try:
                    for start in asyncio.as_completed([engine.start() for engine in engines]):
                        await start
                    await conductor.recover()
                except BaseException:
                    for engine in engines:
                        engine.stop_watching()  # whoever tries again makes watches of its own
                    raise
                self._door = await self._listen(conductor)
                note_actor(self._config, ROLE, str(ray.get_runtime_context().get_actor_id()), os.getpid())
            return self._door

    async def _listen(self, conductor: Conductor) -> Door:
        """Answer over the wire whoever knows the secret, which only Ray's authenticated calls give away."""
        address, secret = ray.util.get_node_ip_address(), secrets.token_hex(16)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(reader, writer, _Desk(conductor, secret).handle)

        self._server = await asyncio.start_server(answer, address, 0)
        return Door(address, self._server.sockets[0].getsockname()[1], secret)


class _Desk:
    """One connection to the conductor."""

    def __init__(self, conductor: Conductor, secret: str) -> None:
        self._conductor = conductor
        self._secret = secret
        self._admitted = False

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        if method == "hello":
            self._admitted = hmac.compare_digest(params["secret"], self._secret)
        if not self._admitted:
            raise Conflict("this conductor answers its session's worker only")
        match method:
            case "hello" | "ping":
                return None
            case "submit":
                args = parse_args(params["args"])
                with tracing.below(params.get("trace")):  # what is started here goes on in that context
                    await self._conductor.submit(args)
                answer = await self._conductor.poll(args.op, params["wait"])
            case "poll":
                answer = await self._conductor.poll(OpId.parse(params["op"]), params["wait"])
            case "cancel":
                answer = await self._conductor.cancel(OpId.parse(params["op"]))
            case _:
                raise Conflict(f"the conductor knows no method {method!r}")
        return answer.model_dump(mode="json")
