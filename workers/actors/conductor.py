"""The conductor's actor: makes a session's other actors, and carries out its operations."""

import asyncio
import hmac
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
from workers.actors import data_plane, generator, trainer
from workers.actors.base import SessionConfig, get_or_create

ROLE = "conductor"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a conductor answers, and the word that opens it."""

    host: str
    port: int
    secret: str


@ray.remote
class ConductorActor:
    """An asyncio actor: nothing in it may block, or `poll` freezes."""

    def __init__(self, config: SessionConfig) -> None:
        config.enter()
        self._config = config
        self._endpoint: Endpoint | None = None
        self._starting = asyncio.Lock()

    async def ready(self) -> Endpoint:
        """Make or find the session's actors, and read back what they did. Again: no effect."""
        async with self._starting:
            if self._endpoint is None:
                plane, trainer_actor, generator_actor = await asyncio.to_thread(self._actors)
                self._plane = plane  # a handle kept, since the first handle of a detached actor names it
                policy, rollouts = trainer.RayTrainer(trainer_actor), generator.RayGenerator(generator_actor)
                await asyncio.gather(policy.start(), rollouts.start())
                conductor = Conductor(EngineExecutor(self._config.spec, policy, rollouts))
                await conductor.recover()
                self._endpoint = await self._listen(conductor)
            return self._endpoint

    async def _listen(self, conductor: Conductor) -> Endpoint:
        """Answer over the wire whoever knows the secret, which only Ray's authenticated calls give away."""
        address, secret = ray.util.get_node_ip_address(), secrets.token_hex(16)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(reader, writer, _Desk(conductor, secret).handle)

        self._server = await asyncio.start_server(answer, address, 0)
        return Endpoint(address, self._server.sockets[0].getsockname()[1], secret)

    def _actors(self) -> tuple[Any, Any, Any]:
        config = self._config
        plane = get_or_create(data_plane.DataPlaneActor, config, data_plane.ROLE)
        return (
            plane,
            get_or_create(trainer.TrainerActor, config, trainer.ROLE),
            get_or_create(generator.GeneratorActor, config, generator.ROLE),
        )


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
            raise Conflict("this conductor answers its session's host only")
        match method:
            case "hello":
                return None
            case "submit":
                args = parse_args(params["args"])
                await self._conductor.submit(args)
                answer = await self._conductor.poll(args.op, params["wait"])
            case "poll":
                answer = await self._conductor.poll(OpId.parse(params["op"]), params["wait"])
            case "cancel":
                answer = await self._conductor.cancel(OpId.parse(params["op"]))
            case _:
                raise Conflict(f"the conductor knows no method {method!r}")
        return answer.model_dump(mode="json")
