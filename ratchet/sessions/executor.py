"""What each operation does with the engines: one short coroutine per kind."""

import asyncio
from collections.abc import Callable

from ratchet.sessions.engines import DataPlaneHandle, GeneratorHandle, TrainerHandle
from ratchet.sessions.replacing import Parts
from ratchet.spec.faults import Cancelled, DataFault
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.operations import (
    AnyArgs,
    CommitArgs,
    EvaluateArgs,
    RefitArgs,
    RestoreArgs,
    RolloutArgs,
    SnapshotArgs,
    TrainArgs,
)
from ratchet.spec.ranges import keys_of
from ratchet.spec.receipts import AnyReceipt, RolloutReceipt, parse_receipt
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.summing import GroupSummary, rollout_receipt

Progress = Callable[[str], None]


class EngineExecutor:
    """Carries out operations on one trainer, one generator and the data plane between them.

    A generator or a data plane that is lost meanwhile is replaced, and the operation goes over its steps
    again: what was finished is found finished (in the journal, in the engines' receipts). A lost trainer is
    the run's business, since it held the head: the operation fails with it.
    """

    def __init__(
        self, spec: RunSpec, trainer: TrainerHandle, generator: GeneratorHandle, data_plane: DataPlaneHandle
    ) -> None:
        self._spec = spec
        self._trainer = trainer
        self._generator = generator
        self._data_plane = data_plane
        self._parts = Parts(trainer, generator, data_plane)

    async def execute(self, args: AnyArgs, progress: Progress, cancelled: asyncio.Event) -> AnyReceipt:
        return await self._parts.surviving(args, progress, lambda: self._once(args, progress, cancelled))

    async def _once(self, args: AnyArgs, progress: Progress, cancelled: asyncio.Event) -> AnyReceipt:
        match args:
            case RestoreArgs():
                return await self._restore(args, progress)
            case RolloutArgs():
                return await self._rollout(args, progress, cancelled)
            case TrainArgs():
                return await self._trainer.train_step(args)
            case RefitArgs():
                return await self._parts.refit(args)
            case SnapshotArgs():
                return await self._trainer.snapshot(args)
            case CommitArgs():
                return await self._trainer.commit_checkpoint(args)
            case EvaluateArgs():
                return await self._generator.evaluate(args)

    async def cancel(self, args: AnyArgs) -> None:
        # Only a rollout can be given up half-way, since what it finished is journaled, and a step that still
        # waits for groups. The others are short or have effects, and end by themselves.
        if isinstance(args, RolloutArgs):
            await self._generator.cancel(args.op)
        elif isinstance(args, TrainArgs) and args.wanted:
            await self._trainer.cancel(args.op)

    async def abandon(self, args: AnyArgs) -> None:
        stuck_in = (
            self._trainer if isinstance(args, RestoreArgs | TrainArgs | SnapshotArgs) else self._generator
        )
        await stuck_in.end(f"{args.op} is over, and did not end")

    async def recover(self) -> list[tuple[OpId, str, AnyReceipt]]:
        found = [*await self._trainer.receipts(), *await self._generator.receipts()]
        known = [(OpId.parse(op), digest, parse_receipt(receipt)) for op, digest, receipt in found]
        # The trainer's receipt says nothing of what a restore does to the others. Whoever asks for one again
        # has not gone on from it, so it is gone through again; the trainer then answers what it did.
        return [entry for entry in known if entry[0].kind is not OpKind.RESTORE]

    async def _restore(self, args: RestoreArgs, progress: Progress) -> AnyReceipt:
        progress("preparing the model")
        folder = await self._trainer.prepare_model()
        progress("loading the model")
        receipt, _ = await asyncio.gather(
            self._trainer.restore(args, folder), self._parts.open(folder, args.op.incarnation)
        )
        # After `open`, which the generator answers once it is done with whatever an older incarnation had
        # asked of it: nothing that was put before this trains.
        await self._data_plane.clear()
        return receipt

    async def _rollout(
        self, args: RolloutArgs, progress: Progress, cancelled: asyncio.Event
    ) -> RolloutReceipt:
        over = set(keys_of(args.finished))
        keys = [key for key in range(args.cursor_start, args.cursor_end) if key not in over]
        # Deterministic generation works group by group anyway; asking that way shows progress and lets a
        # cancel in between. Otherwise the whole batch is one call, and one batch on the engine.
        size = 1 if self._spec.generation.deterministic and not args.live else max(1, len(keys))
        groups: list[GroupSummary] = []
        dropped: list[int] = []
        samples_generated = 0
        engine_s = inflight_s = 0.0
        for start in range(0, len(keys), size):
            if cancelled.is_set():
                raise Cancelled(f"{args.op} was cancelled after {len(groups)} of {len(keys)} groups")
            part = await self._generator.rollout(args, keys[start : start + size])
            groups.extend(part.groups)
            dropped.extend(part.dropped)
            samples_generated = part.samples_generated
            engine_s, inflight_s = engine_s + part.engine_s, inflight_s + part.inflight_s
            progress(f"{len(groups)} of {len(keys)} groups")
        if not groups and not args.live:
            raise DataFault(
                f"every prompt of {args.op} had to be given up: look at what the environment answers"
            )
        return rollout_receipt(
            str(args.op),
            (args.cursor_start, args.cursor_end),
            args.version,
            groups,
            dropped=dropped,
            samples_generated=samples_generated,
            engine_s=engine_s,
            inflight_s=inflight_s,
        )
