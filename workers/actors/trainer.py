"""The trainer's actor, and the handle the conductor has of it."""

from typing import TYPE_CHECKING, Any

import ray

from ratchet.refit.manifest import RefitManifest
from ratchet.spec import deadlines
from ratchet.spec.ids import OpKind
from ratchet.spec.operations import CommitArgs, RefitArgs, RestoreArgs, SnapshotArgs, TrainArgs
from ratchet.spec.receipts import AnyReceipt
from workers.actors.base import SessionConfig, existing
from workers.actors.calls import ask
from workers.actors.data_plane import ROLE as DATA_PLANE
from workers.actors.data_plane import ActorDataPlane

if TYPE_CHECKING:
    from ratchet.policy.service import TrainerService

ROLE = "trainer"


@ray.remote(concurrency_groups={"writer": 1, "control": 1})  # pyright: ignore[reportCallIssue, reportArgumentType]
class TrainerActor:
    """Engine calls run one at a time; writing a checkpoint and answering questions go on beside them."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._started: TrainerService | None = None

    def start(self) -> None:
        """Build the service; again: no effect. Not in `__init__`, where an error would lose its type."""
        if self._started is None:
            config, home = self._config, self._config.enter()
            from ratchet.policy.service import TrainerService

            plane = ActorDataPlane(existing(config, DATA_PLANE))
            self._started = TrainerService(
                config.spec, config.run, home, plane, config.name(ROLE), config.threads
            )

    @property
    def _service(self) -> "TrainerService":
        assert self._started is not None, "start() comes first"
        return self._started

    def prepare_model(self) -> str:
        return self._service.prepare_model()

    def restore(self, args: RestoreArgs, model_folder: str) -> AnyReceipt:
        return self._service.restore(args, model_folder)

    def train_step(self, args: TrainArgs) -> AnyReceipt:
        return self._service.train_step(args)

    def stage_refit(self, args: RefitArgs, wire_dtypes: dict[str, str]) -> RefitManifest:
        return self._service.stage_refit(args, wire_dtypes)

    def snapshot(self, args: SnapshotArgs) -> AnyReceipt:
        return self._service.snapshot(args)

    @ray.method(concurrency_group="writer")
    def commit_checkpoint(self, args: CommitArgs) -> AnyReceipt:
        return self._service.commit_checkpoint(args)

    @ray.method(concurrency_group="control")
    def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return self._service.receipts()


class RayTrainer:
    """TrainerHandle over the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def start(self) -> None:
        await ask(self._actor.start.remote(), ROLE, deadlines.ACTOR_START)

    async def prepare_model(self) -> str:
        return await ask(self._actor.prepare_model.remote(), ROLE, deadlines.OPERATION[OpKind.RESTORE])

    async def restore(self, args: RestoreArgs, model_folder: str) -> AnyReceipt:
        return await ask(self._actor.restore.remote(args, model_folder), ROLE, deadlines.OPERATION[args.kind])

    async def train_step(self, args: TrainArgs) -> AnyReceipt:
        return await ask(self._actor.train_step.remote(args), ROLE, deadlines.OPERATION[args.kind])

    async def stage_refit(self, args: RefitArgs, wire_dtypes: dict[str, str]) -> RefitManifest:
        return await ask(
            self._actor.stage_refit.remote(args, wire_dtypes), ROLE, deadlines.OPERATION[args.kind]
        )

    async def snapshot(self, args: SnapshotArgs) -> AnyReceipt:
        return await ask(self._actor.snapshot.remote(args), ROLE, deadlines.OPERATION[args.kind])

    async def commit_checkpoint(self, args: CommitArgs) -> AnyReceipt:
        return await ask(self._actor.commit_checkpoint.remote(args), ROLE, deadlines.OPERATION[args.kind])

    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return await ask(self._actor.receipts.remote(), ROLE, deadlines.RAY_CALL)
