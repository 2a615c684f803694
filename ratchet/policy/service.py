"""The trainer's side of a session: each method carries out one operation, once, and keeps its receipt."""

import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from ratchet.artifacts.manifest import checkpoint_key, read_manifest
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.checkpoints.loader import load_checkpoint
from ratchet.checkpoints.writer import write_checkpoint
from ratchet.journal.crossing import crossed
from ratchet.models.prepare import prepare_model
from ratchet.policy.registry import create_trainer
from ratchet.policy.streaming import StreamedStep
from ratchet.refit.manifest import RefitManifest
from ratchet.refit.registry import create_sender
from ratchet.refit.segments import segment_prefix, sweep
from ratchet.rollouts.group import PromptGroup
from ratchet.rollouts.partition import TrainPartition
from ratchet.sessions.failpoints import failpoint
from ratchet.sessions.receipt_book import ReceiptBook
from ratchet.sessions.turns import Turns
from ratchet.spec.faults import ActorLost, CheckpointDamaged
from ratchet.spec.home import Home
from ratchet.spec.hyperparameters import with_values
from ratchet.spec.ids import OpId, WeightVersion
from ratchet.spec.operations import CommitArgs, RefitArgs, RestoreArgs, SnapshotArgs, TrainArgs
from ratchet.spec.ranges import keys_of
from ratchet.spec.receipts import CheckpointReceipt, RestoreReceipt, SnapshotReceipt, TrainReceipt
from ratchet.spec.run_spec import RunSpec

log = logging.getLogger(__name__)

State = dict[str, object]


class TrainerService:
    """Engine calls come one at a time; `commit_checkpoint` and `receipts` may run beside them."""

    def __init__(
        self,
        spec: RunSpec,
        run: str,
        home: Home,
        partition: TrainPartition,
        name: str,
        threads: int,
        turn: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """`turn`: see Turns; None: the trainer's device is its own. `host`: an address of this machine that
        generators reach."""
        torch.set_num_threads(threads)
        self._spec = spec
        self._run = run
        self._home = home
        self._artifacts = LocalArtifactStore(home.artifacts)
        self._partition = partition
        self._trainer = create_trainer(spec)
        self._turns = Turns(self._trainer, "trainer", turn)
        prefix = segment_prefix(home, name)
        sweep(prefix)  # what a killed predecessor of this name left
        self._sender = create_sender(spec.refit, home, run, prefix, host)
        self._book = ReceiptBook()
        self._position: WeightVersion | None = None
        self._base_digest = ""
        self._optimizer_steps = 0
        self._hyperparameters: dict[str, float] = {}
        """Those that differ from the spec's, as the trainer has them now."""
        self._snapshots: dict[WeightVersion, State] = {}
        self._cancelled: set[OpId] = set()
        self._staged: RefitManifest | None = None
        self._weights = threading.Lock()
        """Whoever moves the weights, or copies them, has it."""

    def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        """What was carried out here, for a conductor that has to read its log again."""
        return self._book.entries()

    def prepare_model(self) -> str:
        """Folder of the base model, built or converted now if it never was."""
        return str(prepare_model(self._spec.policy.model, self._home))

    def restore(self, args: RestoreArgs, model_folder: str) -> RestoreReceipt:
        """Load the base model, and over it the checkpoint if one is named."""

        def effect() -> RestoreReceipt:
            started = time.monotonic()
            self._snapshots.clear()  # room first: two models at once may not fit
            self._position = None  # a failure on the way leaves no version, never half of one
            with self._turns.taken():
                loaded = self._trainer.open(Path(model_folder))
                self._trainer.adopt(self._spec)
            self._hyperparameters = {}
            self._base_digest = loaded.model_digest
            digest, parent, finished = loaded.model_digest, None, ()
            failpoint("restore.opened")
            if args.checkpoint is not None:
                folder, owner = Path(args.checkpoint), args.checkpoint_run or self._run
                self._trainer.load_state(load_checkpoint(folder, self._trainer.state_template(), owner))
                manifest = read_manifest(folder, owner)
                digest, parent, finished = self._trainer.digest(), manifest.version, manifest.finished
                if parent.digest != digest:
                    raise CheckpointDamaged(
                        f"{folder} was restored to weights {digest[:8]}, but its manifest says "
                        f"{parent.digest[:8]}: use an older checkpoint"
                    )
            failpoint("restore.loaded")
            self._position = WeightVersion(incarnation=args.op.incarnation, step=args.op.step, digest=digest)
            return RestoreReceipt(
                op=str(args.op),
                engine_s=time.monotonic() - started,
                version=self._position,
                checkpoint=args.checkpoint,
                parent=parent,
                finished=finished,
                num_parameters=loaded.num_parameters,
                model_digest=loaded.model_digest,
            )

        return self._book.once(args, effect)

    def train_step(self, args: TrainArgs) -> TrainReceipt:
        """Lease the step's groups, update, and acknowledge them after the update."""

        def effect() -> TrainReceipt:
            self._require(args.version)
            failpoint("train_step.begin")
            if args.wanted:
                return self._streamed(args)
            groups = self._partition.fetch(_trained(args))
            failpoint("train_step.leased")
            started = time.monotonic()
            self._adopt_hyperparameters(args)
            other = self._crossed(args, groups)
            with self._turns.taken(), self._weights:
                result = self._trainer.train(args.op.step, groups, other)
                version = self._moved(args)
            return TrainReceipt(
                op=str(args.op),
                engine_s=time.monotonic() - started,
                version=version,
                cursor_start=args.cursor_start,
                cursor_end=args.cursor_end,
                num_groups=len(groups),
                zero_advantage_groups=result.zero_advantage_groups,
                num_tokens=result.num_tokens,
                optimizer_steps=self._optimizer_steps,
                metrics=result.metrics,
            )

        receipt = self._book.once(args, effect)
        failpoint("train_step.trained")
        # After the receipt is kept: a caller who comes again acknowledges again, and trains nothing.
        self._partition.ack(list(keys_of(receipt.trained)) or _trained(args))
        return receipt

    def _streamed(self, args: TrainArgs) -> TrainReceipt:
        """A step over groups as they are finished."""
        started = time.monotonic()
        self._adopt_hyperparameters(args)
        step = StreamedStep(self._spec, self._partition, args)
        self._trainer.begin(args.op.step)
        try:
            for groups in step.portions(lambda: args.op in self._cancelled):
                failpoint("train_step.leased")
                self._trainer.add(groups, self._crossed(args, groups))
        except BaseException:
            self._trainer.abort()
            raise
        with self._weights:
            result = self._trainer.finish()
            version = self._moved(args)
        return step.receipt(result, version, self._optimizer_steps, time.monotonic() - started)

    def cancel(self, op: OpId) -> None:
        """Let a step that waits for groups end with Cancelled; one that has all of its own goes on."""
        self._cancelled.add(op)

    def _adopt_hyperparameters(self, args: TrainArgs) -> None:
        if args.hyperparameters != self._hyperparameters:
            self._trainer.adopt(with_values(self._spec, args.hyperparameters))
            self._hyperparameters = args.hyperparameters

    def _crossed(self, args: TrainArgs, groups: Sequence[PromptGroup]) -> set[int]:
        """Keys of groups of other weights than these should be of."""
        other = {group.key for group in groups if crossed(group, args.version, args.max_staleness)}
        if other:
            log.warning(
                "%s: %d groups are of other weights than %s: corrected, or discarded if too far",
                args.op,
                len(other),
                args.version,
            )
        return other

    def _moved(self, args: TrainArgs) -> WeightVersion:
        """The weights have moved: whatever fails from here on, the step is not trained on top of itself."""
        self._position = None
        digest = self._trainer.digest()
        self._optimizer_steps += 1
        self._position = WeightVersion(incarnation=args.op.incarnation, step=args.op.step, digest=digest)
        return self._position

    def position(self) -> WeightVersion | None:
        """The version that it holds."""
        return self._position

    def stage_refit(self, args: RefitArgs, wire_dtypes: dict[str, str]) -> RefitManifest:
        """Put the head where generators can read it, also while a step waits for its groups. Again: staged
        again."""
        with self._weights:
            self._require(args.version)
            staged = self._staged
            if staged and staged.version.digest == args.version.digest and self._sender.holds(staged):
                manifest = staged.model_copy(update={"version": args.version})  # the same bytes
            else:
                weights = cast("dict[str, torch.Tensor]", self._trainer.weights())
                manifest = self._staged = self._sender.stage(args.version, weights, wire_dtypes)
        failpoint("refit.staged")
        return manifest

    def snapshot(self, args: SnapshotArgs) -> SnapshotReceipt:
        """Copy the state, so that training may go on while it is written."""

        def effect() -> SnapshotReceipt:
            started = time.monotonic()
            self._require(args.version)
            # One at a time: that of a checkpoint which could not be stored is of no use to the next one.
            self._snapshots.clear()
            state = self._snapshots[args.version] = self._trainer.state()
            return SnapshotReceipt(
                op=str(args.op),
                engine_s=time.monotonic() - started,
                version=args.version,
                num_bytes=_num_bytes(state),
            )

        return self._book.once(args, effect)

    def commit_checkpoint(self, args: CommitArgs) -> CheckpointReceipt:
        """Write the snapshot; its manifest is the commit."""

        def effect() -> CheckpointReceipt:
            state = self._snapshots.get(args.version)
            if state is None:
                raise ActorLost(f"the snapshot of {args.version} is gone: restore", role="trainer")
            failpoint("commit_checkpoint.begin")
            weights = cast("dict[str, object]", state["model"])
            folder = self._artifacts.local_folder(
                checkpoint_key(self._run, args.op.incarnation, args.op.step)
            )
            written = write_checkpoint(
                folder,
                state,
                run=self._run,
                incarnation=args.op.incarnation,
                step=args.op.step,
                cursor=args.cursor,
                finished=args.finished,
                version=args.version,
                base_model=self._base_digest,
                spec_digest=hashlib.sha256(self._spec.model_dump_json().encode()).hexdigest(),
                hf_export=(lambda target: self._trainer.export_hf(target, weights))
                if args.hf_export
                else None,
            )
            self._snapshots.pop(args.version, None)  # a restore may have cleared it beside this
            return CheckpointReceipt(
                op=str(args.op),
                engine_s=written.write_s,
                version=args.version,
                path=str(folder),
                digest=written.digest,
                manifest_digest=written.manifest_digest,
                num_bytes=written.num_bytes,
                num_files=written.num_files,
                write_s=written.write_s,
            )

        return self._book.once(args, effect)

    def _require(self, version: WeightVersion) -> None:
        if self._position != version:
            raise ActorLost(
                f"the trainer holds weights {self._position or 'of no version'}, not {version}: restore",
                role="trainer",
            )


def _trained(args: TrainArgs) -> list[int]:
    """The cursor positions of the step, without those whose prompts were given up."""
    return [key for key in range(args.cursor_start, args.cursor_end) if key not in args.dropped]


def _num_bytes(state: object) -> int:
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(_num_bytes(value) for value in state.values()) if isinstance(state, dict) else 0
