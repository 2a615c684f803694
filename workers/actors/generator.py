"""The generator's actor, and the handle the conductor has of it."""

from collections.abc import Sequence

import ray

from ratchet.refit.manifest import RefitManifest
from ratchet.rollouts.partition import TrainPartition
from ratchet.rollouts.worker import RolloutResult
from ratchet.spec import deadlines
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.operations import EvaluateArgs, RefitArgs, RolloutArgs
from ratchet.spec.receipts import AnyReceipt
from workers.actors.base import SessionConfig, pong
from workers.actors.data_plane import SessionDataPlane
from workers.actors.engine import CONTROL, RemoteEngine
from workers.actors.lines import Endpoint, LineServer

ROLE = "generator"
ENGINE = "engine"
CALLS_AT_ONCE = 64
"""Calls of an asynchronous run's generator that may be under way: its open rollouts, and a few more."""


@ray.remote
class GeneratorActor:
    """Engine calls run one at a time; cancelling and answering questions go on beside them."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._server: LineServer | None = None

    def start(self) -> Endpoint:
        """Build the service and serve; again: the same endpoint. Not in `__init__`, where an error would lose
        its type."""
        if self._server is None:
            config, home = self._config, self._config.enter(ROLE)
            from ratchet.generation.live_service import LiveGeneratorService
            from ratchet.generation.service import GeneratorService

            name = config.name(ROLE)
            partition = TrainPartition(SessionDataPlane(config, ROLE), name)
            parts = (config.spec, config.run, home, partition, name, config.threads)
            service = (
                LiveGeneratorService(*parts)
                if config.spec.streams
                else GeneratorService(*parts, turn=config.turn)
            )
            engine = {
                "open": service.open,
                "refit": service.refit,
                "rollout": service.rollout,
                "refill": service.refill,
                "evaluate": service.evaluate,
            }
            control = {"ping": pong, "cancel": service.cancel, "receipts": service.receipts}
            at_once = (ENGINE,) if config.spec.streams else ()
            self._server = LineServer(
                ray.util.get_node_ip_address(), {ENGINE: engine, CONTROL: control}, at_once
            )
        return self._server.endpoint


class RayGenerator(RemoteEngine):
    """GeneratorHandle over the actor."""

    def __init__(self, config: SessionConfig) -> None:
        calls = {ENGINE: CALLS_AT_ONCE if config.spec.streams else 1, CONTROL: 1}
        super().__init__(config, ROLE, GeneratorActor, calls)

    async def open(self, model_folder: str, incarnation: int) -> dict[str, str]:
        deadline = deadlines.OPERATION[OpKind.RESTORE]
        return await self.call(ENGINE, "open", model_folder, incarnation, deadline=deadline)

    async def refit(self, args: RefitArgs, manifest: RefitManifest) -> AnyReceipt:
        return await self.call(ENGINE, "refit", args, manifest, deadline=deadlines.OPERATION[args.kind])

    async def rollout(self, args: RolloutArgs, keys: Sequence[int]) -> RolloutResult:
        return await self.call(ENGINE, "rollout", args, list(keys), deadline=deadlines.OPERATION[args.kind])

    async def refill(self, keys: Sequence[int]) -> None:
        await self.call(ENGINE, "refill", list(keys), deadline=deadlines.OPERATION[OpKind.ROLLOUT_BATCH])

    async def evaluate(self, args: EvaluateArgs) -> AnyReceipt:
        return await self.call(ENGINE, "evaluate", args, deadline=deadlines.OPERATION[args.kind])

    async def cancel(self, op: OpId) -> None:
        await self.call(CONTROL, "cancel", op, deadline=deadlines.RAY_CALL)

    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return await self.call(CONTROL, "receipts", deadline=deadlines.RAY_CALL)
