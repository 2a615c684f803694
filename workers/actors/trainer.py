"""The trainer's actor, and the handle the conductor has of it."""

import ray

from ratchet.refit.manifest import RefitManifest
from ratchet.rollouts.partition import TrainPartition
from ratchet.spec import deadlines
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import AnyArgs, CommitArgs, RefitArgs, RestoreArgs, SnapshotArgs, TrainArgs
from ratchet.spec.receipts import AnyReceipt
from workers.actors.base import SessionConfig, pong
from workers.actors.data_plane import SessionDataPlane
from workers.actors.engine import CONTROL, RemoteEngine
from workers.actors.lines import Endpoint, LineServer

ROLE = "trainer"
ENGINE = "engine"
WRITER = "writer"
STAGE = "stage"


@ray.remote
class TrainerActor:
    """Engine calls run one at a time; writing a checkpoint and answering questions go on beside them."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._server: LineServer | None = None

    def start(self) -> Endpoint:
        """Build the service and serve; again: the same endpoint. Not in `__init__`, where an error would lose
        its type."""
        if self._server is None:
            config, home = self._config, self._config.enter(ROLE)
            from ratchet.policy.service import TrainerService

            name = config.name(ROLE)
            partition = TrainPartition(SessionDataPlane(config, ROLE), name)
            host = ray.util.get_node_ip_address()
            parts = (config.spec, config.run, home, partition, name, config.threads)
            service = TrainerService(*parts, turn=config.turn, host=host)
            engine = {
                "prepare_model": service.prepare_model,
                "restore": service.restore,
                "train_step": service.train_step,
                "stage_refit": service.stage_refit,
                "snapshot": service.snapshot,
            }
            writer = {"commit_checkpoint": service.commit_checkpoint}
            stage = {"stage_refit": service.stage_refit}
            control = {
                "ping": pong,
                "receipts": service.receipts,
                "position": service.position,
                "cancel": service.cancel,
            }
            self._server = LineServer(
                host,
                {ENGINE: engine, STAGE: stage, WRITER: writer, CONTROL: control},
            )
        return self._server.endpoint


class RayTrainer(RemoteEngine):
    """TrainerHandle over the actor."""

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(config, ROLE, TrainerActor, dict.fromkeys((ENGINE, STAGE, WRITER, CONTROL), 1))
        # A step that waits for groups may wait for a generator that waits for weights.
        self._staging = STAGE if config.spec.streams else ENGINE

    async def prepare_model(self) -> str:
        return await self.call(ENGINE, "prepare_model", deadline=deadlines.OPERATION[OpKind.RESTORE])

    async def restore(self, args: RestoreArgs, model_folder: str) -> AnyReceipt:
        return await self._operation(ENGINE, "restore", args, model_folder)

    async def train_step(self, args: TrainArgs) -> AnyReceipt:
        return await self._operation(ENGINE, "train_step", args)

    async def stage_refit(self, args: RefitArgs, wire_dtypes: dict[str, str]) -> RefitManifest:
        deadline = deadlines.OPERATION[args.kind]
        return await self.call(self._staging, "stage_refit", args, wire_dtypes, deadline=deadline)

    async def position(self) -> WeightVersion | None:
        return await self.call(CONTROL, "position", deadline=deadlines.RAY_CALL)

    async def cancel(self, op: OpId) -> None:
        await self.call(CONTROL, "cancel", op, deadline=deadlines.RAY_CALL)

    async def snapshot(self, args: SnapshotArgs) -> AnyReceipt:
        return await self._operation(ENGINE, "snapshot", args)

    async def commit_checkpoint(self, args: CommitArgs) -> AnyReceipt:
        return await self._operation(WRITER, "commit_checkpoint", args)

    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        return await self.call(CONTROL, "receipts", deadline=deadlines.RAY_CALL)

    async def _operation(self, lane: str, method: str, args: AnyArgs, *more: object) -> AnyReceipt:
        return await self.call(lane, method, args, *more, deadline=deadlines.OPERATION[args.kind])
