"""The conductor's actor: makes a session's other actors, and carries out its operations."""

import asyncio
from typing import Any

import ray

from ratchet.sessions.conductor import Conductor
from ratchet.sessions.executor import EngineExecutor
from ratchet.spec.ids import OpId
from ratchet.spec.operations import parse_args
from workers.actors import data_plane, generator, trainer
from workers.actors.base import SessionConfig, get_or_create

ROLE = "conductor"


@ray.remote
class ConductorActor:
    """An asyncio actor: nothing in it may block, or `poll` freezes."""

    def __init__(self, config: SessionConfig) -> None:
        config.enter()
        self._config = config
        self._conductor: Conductor | None = None
        self._starting = asyncio.Lock()

    async def ready(self) -> None:
        """Make or find the session's actors, and read back what they did. Again: no effect."""
        async with self._starting:
            if self._conductor is not None:
                return
            plane, trainer_actor, generator_actor = await asyncio.to_thread(self._actors)
            self._plane = plane  # a handle kept, since the first handle of a detached actor names it
            policy, rollouts = trainer.RayTrainer(trainer_actor), generator.RayGenerator(generator_actor)
            await asyncio.gather(policy.start(), rollouts.start())
            conductor = Conductor(EngineExecutor(self._config.spec, policy, rollouts))
            await conductor.recover()
            self._conductor = conductor

    def _actors(self) -> tuple[Any, Any, Any]:
        config = self._config
        plane = get_or_create(data_plane.DataPlaneActor, config, data_plane.ROLE)
        return (
            plane,
            get_or_create(trainer.TrainerActor, config, trainer.ROLE),
            get_or_create(generator.GeneratorActor, config, generator.ROLE),
        )

    async def submit(self, args: dict[str, Any], wait: float) -> dict[str, Any]:
        parsed = parse_args(args)
        await self._ready().submit(parsed)
        return (await self._ready().poll(parsed.op, wait)).model_dump(mode="json")

    async def poll(self, op: str, wait: float) -> dict[str, Any]:
        return (await self._ready().poll(OpId.parse(op), wait)).model_dump(mode="json")

    async def cancel(self, op: str) -> dict[str, Any]:
        return (await self._ready().cancel(OpId.parse(op))).model_dump(mode="json")

    def _ready(self) -> Conductor:
        assert self._conductor is not None, "ready() comes first"
        return self._conductor
