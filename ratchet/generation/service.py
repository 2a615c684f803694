"""The generator's side of a session: refits, rollouts and evaluations, each carried out once."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ratchet.environments.registry import create_environment
from ratchet.generation.registry import create_generator
from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.refit.manifest import RefitManifest
from ratchet.refit.registry import create_receiver
from ratchet.rollouts.partition import TrainPartition
from ratchet.rollouts.worker import RolloutResult, RolloutWorker
from ratchet.sessions.failpoints import failpoint
from ratchet.sessions.losses import WeightsMissing
from ratchet.sessions.receipt_book import ReceiptBook
from ratchet.sessions.turns import Turns
from ratchet.spec.faults import StorageFault
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, WeightVersion
from ratchet.spec.operations import EvaluateArgs, RefitArgs, RolloutArgs
from ratchet.spec.receipts import EvaluateReceipt, RefitReceipt
from ratchet.spec.run_spec import RunSpec


class GeneratorService:
    """Engine calls come one at a time; `cancel` and `receipts` may run beside them."""

    def __init__(
        self,
        spec: RunSpec,
        run: str,
        home: Home,
        partition: TrainPartition,
        name: str,
        threads: int,
        turn: Path | None = None,
    ) -> None:
        """`turn`: see Turns; None: the generator's device is its own."""
        torch.set_num_threads(threads)
        self._run = run
        self._generator = create_generator(spec)
        self._turns = Turns(self._generator, "generator", turn)
        self._receiver = create_receiver(spec.refit, home, run)
        self._book = ReceiptBook()
        self._opened: Path | None = None
        self._version: WeightVersion | None = None
        self._cancelled: set[OpId] = set()
        journal = home.run_folder(run) / "journal"
        self._worker = RolloutWorker(
            spec,
            self._generator,
            create_environment(spec.environment, spec.seed),
            JournalWriter(journal, name),
            JournalIndex(journal),
            partition,
        )

    def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        """What was carried out here, for a conductor that has to read its log again."""
        return self._book.entries()

    def open(self, model_folder: str, incarnation: int = 0) -> dict[str, str]:  # noqa: ARG002 - calls queue
        """Build the model, once; its weights come by refit. Name -> dtype of what a refit must bring."""
        folder = Path(model_folder)
        if self._opened != folder:
            with self._turns.taken():
                self._generator.open(folder)
            self._opened, self._version = folder, None
        return self._generator.wire_dtypes()

    def refit(self, args: RefitArgs, manifest: RefitManifest) -> RefitReceipt:
        """Switch to a staged version. Its bytes are verified before any is used."""

        def effect() -> RefitReceipt:
            started = time.monotonic()
            failpoint("refit.begin")
            held, self._version = self._version, None  # a failure leaves no version, never half of one
            wire_bytes = 0
            if held is None or held.digest != args.version.digest:
                with self._receiver.open(manifest) as tensors:
                    self._generator.load_weights(tensors)
                wire_bytes = self._receiver.fetched_bytes
            failpoint("refit.loaded")
            self._version = args.version
            return RefitReceipt(
                op=str(args.op),
                engine_s=time.monotonic() - started,
                version=args.version,
                mover=manifest.mover,
                num_tensors=len(manifest.layout.entries),
                num_bytes=manifest.layout.num_bytes,
                wire_digest=manifest.digest,
                wire_bytes=wire_bytes,
            )

        return self._book.once(args, effect)

    def rollout(self, args: RolloutArgs, keys: Sequence[int]) -> RolloutResult:
        """Finish the groups of `keys`. Again: those that are journaled are replayed, not generated."""
        self._book.adopt(args.op)
        self._require(args.version)
        failpoint("rollout_batch.begin")
        with self._turns.taken():
            return self._worker.rollout(
                keys,
                args.op.incarnation,
                args.version,
                should_stop=lambda: args.op in self._cancelled,
                on_group=lambda _key: failpoint("rollout_batch.group"),
            )

    def refill(self, keys: Sequence[int]) -> None:
        """Put journaled groups into the data plane again, after it lost them. Raises StorageFault."""
        missing = self._worker.refill(keys)
        if missing:
            raise StorageFault(
                f"the journal of {self._run} lacks the finished groups {missing}: its files were removed; "
                f"go back to an older checkpoint with `ratchet run resume {self._run}`",
                role="generator",
            )

    def evaluate(self, args: EvaluateArgs) -> EvaluateReceipt:
        """Greedy answers to held-out problems; no cursor moves, no training RNG is drawn from."""

        def effect() -> EvaluateReceipt:
            self._require(args.version)
            started = time.monotonic()
            with self._turns.taken():
                result = self._worker.evaluate(args.num_problems)
            return EvaluateReceipt(
                op=str(args.op),
                engine_s=time.monotonic() - started,
                version=args.version,
                num_problems=result.num_problems,
                accuracy=result.accuracy,
                reward_mean=result.reward_mean,
                length_mean=result.length_mean,
            )

        return self._book.once(args, effect)

    def cancel(self, op: OpId) -> None:
        """Let the running or coming rollout of `op` end with Cancelled."""
        self._cancelled.add(op)

    def _require(self, version: WeightVersion) -> None:
        if self._version != version:
            raise WeightsMissing(
                f"the generator holds weights {self._version or 'of no version'}, not {version}: refit",
                role="generator",
            )
