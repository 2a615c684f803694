"""Engines that follow a script. Their weights are a hash of everything trained so far, and their checkpoints
are real ones: what is lost, or done twice, shows."""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from ratchet.artifacts.manifest import (
    FileEntry,
    Manifest,
    commit_manifest,
    files_damaged,
    read_manifest,
    verify_files,
)
from ratchet.spec.faults import ActorLost, Cancelled, RatchetError
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, OpKind, WeightVersion
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
from ratchet.spec.ranges import Ranges, keys_of, to_ranges
from ratchet.spec.receipts import (
    AnyReceipt,
    CheckpointReceipt,
    EvaluateReceipt,
    Recovered,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    SnapshotReceipt,
    TrainReceipt,
)
from ratchet.spec.summing import rollout_receipt

Moment = tuple[OpKind, int]
"""An operation of a script: its kind and its step, in whatever incarnation."""


@dataclass
class Script:
    """What the engines do out of the ordinary."""

    holds: dict[Moment, asyncio.Event] = field(default_factory=dict)
    """Operations that wait for an event."""
    faults: dict[Moment, list[RatchetError]] = field(default_factory=dict)
    """Operations that fail, one fault a start."""
    recovered: dict[Moment, Recovered] = field(default_factory=dict)
    """Operations during which a part was lost and replaced."""
    progress: dict[Moment, str] = field(default_factory=dict)
    """How far an operation says that it is."""
    began: defaultdict[Moment, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    """Set when an operation begins."""
    carried_out: list[str] = field(default_factory=list)
    """Every operation that had its effect, in order; one that stands in it twice is a defect."""
    hyperparameters: dict[str, dict[str, float]] = field(default_factory=dict)
    """What every train step was given."""
    trained: dict[str, Ranges] = field(default_factory=dict)
    """Positions of every train step that took its groups as they were finished."""

    def hold(self, kind: OpKind, step: int) -> asyncio.Event:
        return self.holds.setdefault((kind, step), asyncio.Event())


class ScriptedExecutor:
    """An Executor. It holds no weights before it has restored some, like a trainer that was just started."""

    def __init__(self, script: Script, home: Home) -> None:
        self._script = script
        self._home = home
        self._weights: str | None = None
        self._snapshots: dict[WeightVersion, str] = {}
        self._finished: list[int] = []
        """Positions whose groups are there, as they came."""

    async def execute(
        self, args: AnyArgs, progress: Callable[[str], None], cancelled: asyncio.Event
    ) -> AnyReceipt:
        moment = (args.op.kind, args.op.step)
        progress(self._script.progress.get(moment, ""))
        self._script.began[moment].set()
        if (hold := self._script.holds.get(moment)) is not None:
            waits = [asyncio.create_task(hold.wait()), asyncio.create_task(cancelled.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if cancelled.is_set():
                raise Cancelled(f"{args.op} was cancelled")
        if faults := self._script.faults.get(moment):
            raise faults.pop(0)
        if self._weights is None and not isinstance(args, RestoreArgs):
            raise ActorLost("the trainer holds no weights: restore", role="trainer")
        if isinstance(args, TrainArgs) and args.wanted:
            await self._until_finished(args, cancelled)
        receipt = self._receipt(args)
        self._script.carried_out.append(str(args.op))
        part = self._script.recovered.pop(moment, None)
        return receipt.model_copy(update={"recovered": (part,)}) if part else receipt

    async def abandon(self, args: AnyArgs) -> None:
        raise AssertionError(f"{args.op} was told to end, and should have")

    async def cancel(self, args: AnyArgs) -> None:
        pass  # the event that `execute` waits for is enough

    async def recover(self) -> list[tuple[OpId, str, AnyReceipt]]:
        return []

    async def _until_finished(self, args: TrainArgs, cancelled: asyncio.Event) -> None:
        while len(self._ready(args)) < args.wanted:
            if cancelled.is_set():
                raise Cancelled(f"{args.op} was cancelled")
            await asyncio.sleep(0.01)

    def _ready(self, args: TrainArgs) -> list[int]:
        over = set(keys_of(args.finished))
        return [key for key in self._finished if key >= args.cursor_start and key not in over]

    def _receipt(self, args: AnyArgs) -> AnyReceipt:
        op = str(args.op)
        match args:
            case RestoreArgs():
                return self._restore(args)
            case RolloutArgs():
                count = args.cursor_end - args.cursor_start
                over = set(keys_of(args.finished))
                self._finished += [
                    key for key in range(args.cursor_start, args.cursor_end) if key not in over
                ]
                return RolloutReceipt(
                    op=op,
                    cursor_start=args.cursor_start,
                    cursor_end=args.cursor_end,
                    num_groups=count,
                    num_samples=2 * count,
                    replayed_groups=0,
                    num_tokens=8 * count,
                    reward_mean=0.5,
                    reward_std=0.5,
                    accuracy=0.5,
                    length_mean=4.0,
                    truncated_fraction=0.0,
                    samples_generated=2 * args.cursor_end,
                    version=args.version,
                )
            case TrainArgs():
                return self._train(args)
            case RefitArgs():
                return RefitReceipt(
                    op=op, version=args.version, mover="ipc", num_tensors=1, num_bytes=4, wire_digest="w"
                )
            case SnapshotArgs():
                self._snapshots[args.version] = self._held()
                return SnapshotReceipt(op=op, version=args.version, num_bytes=4)
            case CommitArgs():
                return self._commit(args)
            case EvaluateArgs():
                return EvaluateReceipt(
                    op=op,
                    version=args.version,
                    num_problems=args.num_problems,
                    accuracy=0.5,
                    reward_mean=0.5,
                    length_mean=4.0,
                )

    def _restore(self, args: RestoreArgs) -> RestoreReceipt:
        parent, finished = None, ()
        self._finished.clear()
        if args.checkpoint is None:
            self._weights = "base"
        else:
            folder = Path(args.checkpoint)
            manifest = read_manifest(folder, args.checkpoint_run or args.op.run)
            if damage := verify_files(folder, manifest):
                raise files_damaged(damage)
            self._weights = (folder / "state").read_text()
            parent, finished = manifest.version, manifest.finished
        return RestoreReceipt(
            op=str(args.op),
            version=self._version(args),
            checkpoint=args.checkpoint,
            parent=parent,
            finished=finished,
            num_parameters=1,
            model_digest="m",
        )

    def _train(self, args: TrainArgs) -> TrainReceipt:
        self._script.hyperparameters[str(args.op)] = args.hyperparameters
        chosen = to_ranges(self._ready(args)[: args.wanted]) if args.wanted else ()
        self._script.trained[str(args.op)] = chosen
        trained = (
            f"{self._held()}/{args.cursor_start}-{args.cursor_end}/{sorted(args.hyperparameters.items())}"
        )
        self._weights = xxhash.xxh3_64(trained.encode()).hexdigest()
        return TrainReceipt(
            op=str(args.op),
            version=self._version(args),
            cursor_start=args.cursor_start,
            cursor_end=args.cursor_end,
            num_groups=args.cursor_end - args.cursor_start,
            zero_advantage_groups=0,
            num_tokens=8,
            optimizer_steps=args.op.step,
            trained=chosen,
            batch=rollout_receipt(str(args.op), chosen[0], args.version, ()) if chosen else None,
            metrics={"loss": 0.1, "grad_norm": 1.0, "learning_rate": 1e-5, "reward_mean": 0.5},
        )

    def _commit(self, args: CommitArgs) -> CheckpointReceipt:
        run, incarnation, step = args.op.run, args.op.incarnation, args.op.step
        folder = self._home.run_folder(run) / "checkpoints" / f"{incarnation}-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        state = self._snapshots[args.version].encode()
        (folder / "state").write_bytes(state)
        sha256 = hashlib.sha256(state).hexdigest()
        manifest = Manifest(
            run=run,
            incarnation=incarnation,
            step=step,
            cursor=args.cursor,
            finished=args.finished,
            version=args.version,
            state_digest=sha256,
            base_model="m",
            spec_digest="s",
            created_at=0.0,
            files=(FileEntry(path="state", size=len(state), sha256=sha256),),
        )
        return CheckpointReceipt(
            op=str(args.op),
            version=args.version,
            path=str(folder),
            digest=sha256,
            manifest_digest=commit_manifest(folder, manifest),
            num_bytes=len(state),
            num_files=1,
            write_s=0.0,
        )

    def _held(self) -> str:
        assert self._weights is not None
        return self._weights

    def _version(self, args: AnyArgs) -> WeightVersion:
        return WeightVersion(incarnation=args.op.incarnation, step=args.op.step, digest=self._held())
