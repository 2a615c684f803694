"""What each operation does with the engines: one short coroutine per kind."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ratchet.spec.faults import Cancelled
from ratchet.spec.ids import OpId
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
from ratchet.spec.receipts import AnyReceipt, RolloutReceipt, parse_receipt
from ratchet.spec.run_spec import RunSpec

Progress = Callable[[str], None]


class TrainerHandle(Protocol):
    """A trainer's service, called from far away. Raises RatchetErrors; ActorLost when the actor is dead."""

    async def prepare_model(self) -> str: ...
    async def restore(self, args: RestoreArgs, model_folder: str) -> AnyReceipt: ...
    async def train_step(self, args: TrainArgs) -> AnyReceipt: ...
    async def stage_refit(self, args: RefitArgs, wire_dtypes: dict[str, str]) -> Any: ...
    async def snapshot(self, args: SnapshotArgs) -> AnyReceipt: ...
    async def commit_checkpoint(self, args: CommitArgs) -> AnyReceipt: ...
    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]: ...


class GeneratorHandle(Protocol):
    """A generator's service, called from far away."""

    async def open(self, model_folder: str) -> dict[str, str]: ...
    async def refit(self, args: RefitArgs, manifest: Any) -> AnyReceipt: ...
    async def rollout(self, args: RolloutArgs, keys: Sequence[int]) -> "RolloutPart": ...
    async def evaluate(self, args: EvaluateArgs) -> AnyReceipt: ...
    async def cancel(self, op: OpId) -> None: ...
    async def receipts(self) -> list[tuple[str, str, dict[str, object]]]: ...


class RolloutPart(Protocol):
    """What a generator did for some of a batch's groups."""

    @property
    def groups(self) -> "Sequence[GroupSummary]": ...
    @property
    def samples_generated(self) -> int: ...
    @property
    def engine_s(self) -> float: ...


class GroupSummary(Protocol):
    @property
    def replayed(self) -> bool: ...
    @property
    def rewards(self) -> Sequence[float]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def truncated(self) -> int: ...
    @property
    def correct(self) -> int: ...


class EngineExecutor:
    """Carries out operations on one trainer and one generator."""

    def __init__(self, spec: RunSpec, trainer: TrainerHandle, generator: GeneratorHandle) -> None:
        self._spec = spec
        self._trainer = trainer
        self._generator = generator
        self._wire_dtypes: dict[str, str] | None = None  # asked for again if this conductor did not restore

    async def execute(self, args: AnyArgs, progress: Progress, cancelled: asyncio.Event) -> AnyReceipt:
        match args:
            case RestoreArgs():
                return await self._restore(args, progress)
            case RolloutArgs():
                return await self._rollout(args, progress, cancelled)
            case TrainArgs():
                return await self._trainer.train_step(args)
            case RefitArgs():
                return await self._refit(args)
            case SnapshotArgs():
                return await self._trainer.snapshot(args)
            case CommitArgs():
                return await self._trainer.commit_checkpoint(args)
            case EvaluateArgs():
                return await self._generator.evaluate(args)

    async def cancel(self, args: AnyArgs) -> None:
        # Only a rollout can be given up half-way: what it finished is journaled. The others are short or
        # have effects, and end by themselves.
        if isinstance(args, RolloutArgs):
            await self._generator.cancel(args.op)

    async def recover(self) -> list[tuple[OpId, str, AnyReceipt]]:
        found = [*await self._trainer.receipts(), *await self._generator.receipts()]
        return [(OpId.parse(op), digest, parse_receipt(receipt)) for op, digest, receipt in found]

    async def _restore(self, args: RestoreArgs, progress: Progress) -> AnyReceipt:
        progress("preparing the model")
        folder = await self._trainer.prepare_model()
        progress("loading the model")
        receipt, self._wire_dtypes = await asyncio.gather(
            self._trainer.restore(args, folder), self._generator.open(folder)
        )
        return receipt

    async def _refit(self, args: RefitArgs) -> AnyReceipt:
        if self._wire_dtypes is None:
            self._wire_dtypes = await self._generator.open(await self._trainer.prepare_model())
        manifest = await self._trainer.stage_refit(args, self._wire_dtypes)
        return await self._generator.refit(args, manifest)

    async def _rollout(
        self, args: RolloutArgs, progress: Progress, cancelled: asyncio.Event
    ) -> RolloutReceipt:
        keys = range(args.cursor_start, args.cursor_end)
        # Deterministic generation works group by group anyway; asking that way shows progress and lets a
        # cancel in between. Otherwise the whole batch is one call, and one batch on the engine.
        size = 1 if self._spec.generation.deterministic else len(keys)
        groups: list[GroupSummary] = []
        samples_generated = 0
        engine_s = 0.0
        for start in range(0, len(keys), size):
            if cancelled.is_set():
                raise Cancelled(f"{args.op} was cancelled after {len(groups)} of {len(keys)} groups")
            part = await self._generator.rollout(args, keys[start : start + size])
            groups.extend(part.groups)
            samples_generated, engine_s = part.samples_generated, engine_s + part.engine_s
            progress(f"{len(groups)} of {len(keys)} groups")
        return _rollout_receipt(args, groups, samples_generated, engine_s)


def _rollout_receipt(
    args: RolloutArgs, groups: Sequence[GroupSummary], samples_generated: int, engine_s: float
) -> RolloutReceipt:
    rewards = [reward for group in groups for reward in group.rewards]
    count = len(rewards)
    mean = sum(rewards) / count
    num_tokens = sum(group.num_tokens for group in groups)
    return RolloutReceipt(
        op=str(args.op),
        engine_s=engine_s,
        cursor_start=args.cursor_start,
        cursor_end=args.cursor_end,
        num_groups=len(groups),
        num_samples=count,
        replayed_groups=sum(group.replayed for group in groups),
        num_tokens=num_tokens,
        reward_mean=mean,
        reward_std=(sum((reward - mean) ** 2 for reward in rewards) / count) ** 0.5,
        accuracy=sum(group.correct for group in groups) / count,
        length_mean=num_tokens / count,
        truncated_fraction=sum(group.truncated for group in groups) / count,
        samples_generated=samples_generated,
        version=args.version,
    )
