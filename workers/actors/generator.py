"""The generator's actor, and the handle the conductor has of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray

from ratchet.refit.manifest import RefitManifest
from ratchet.rollouts.worker import RolloutResult
from ratchet.spec import deadlines
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.operations import EvaluateArgs, RefitArgs, RolloutArgs
from ratchet.spec.receipts import AnyReceipt
from workers.actors.base import SessionConfig, existing
from workers.actors.calls import ask
from workers.actors.data_plane import ROLE as DATA_PLANE
from workers.actors.data_plane import ActorDataPlane

if TYPE_CHECKING:
    from ratchet.generation.service import GeneratorService

ROLE = "generator"


@ray.remote(concurrency_groups={"control": 1})  # pyright: ignore[reportCallIssue, reportArgumentType]
class GeneratorActor:
    """Engine calls run one at a time; cancelling and answering questions go on beside them."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._started: GeneratorService | None = None

    def start(self) -> None:
        """Build the service; again: no effect. Not in `__init__`, where an error would lose its type."""
        if self._started is None:
            config, home = self._config, self._config.enter()
            from ratchet.generation.service import GeneratorService

            plane = ActorDataPlane(existing(config, DATA_PLANE))
            self._started = GeneratorService(
                config.spec, config.run, home, plane, config.name(ROLE), config.threads
            )

    @property
    def _service(self) -> "GeneratorService":
        assert self._started is not None, "start() comes first"
        return self._started

    def open(self, model_folder: str) -> dict[str, str]:
        return self._service.open(model_folder)

    def refit(self, args: RefitArgs, manifest: RefitManifest) -> AnyReceipt:
        return self._service.refit(args, manifest)

    def rollout(self, args: RolloutArgs, keys: Sequence[int]) -> RolloutResult:
        return self._service.rollout(args, keys)

    def evaluate(self, args: EvaluateArgs) -> AnyReceipt:
        return self._service.evaluate(args)

    @ray.method(concurrency_group="control")
    def cancel(self, op: OpId) -> None:
        self._service.cancel(op)

    @ray.method(concurrency_group="control")
    def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return self._service.receipts()


class RayGenerator:
    """GeneratorHandle over the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def start(self) -> None:
        await ask(self._actor.start.remote(), ROLE, deadlines.ACTOR_START)

    async def open(self, model_folder: str) -> dict[str, str]:
        return await ask(self._actor.open.remote(model_folder), ROLE, deadlines.OPERATION[OpKind.RESTORE])

    async def refit(self, args: RefitArgs, manifest: RefitManifest) -> AnyReceipt:
        return await ask(self._actor.refit.remote(args, manifest), ROLE, deadlines.OPERATION[args.kind])

    async def rollout(self, args: RolloutArgs, keys: Sequence[int]) -> RolloutResult:
        return await ask(self._actor.rollout.remote(args, list(keys)), ROLE, deadlines.OPERATION[args.kind])

    async def evaluate(self, args: EvaluateArgs) -> AnyReceipt:
        return await ask(self._actor.evaluate.remote(args), ROLE, deadlines.OPERATION[args.kind])

    async def cancel(self, op: OpId) -> None:
        await ask(self._actor.cancel.remote(op), ROLE, deadlines.RAY_CALL)

    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return await ask(self._actor.receipts.remote(), ROLE, deadlines.RAY_CALL)
