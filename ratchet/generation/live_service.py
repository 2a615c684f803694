"""The generator's side of an asynchronous session: rollouts, refits and evaluations beside each other."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from ratchet.environments.registry import create_environment
from ratchet.generation.live import LiveEngine
from ratchet.generation.registry import create_generator
from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.refit.manifest import RefitManifest
from ratchet.refit.registry import create_receiver
from ratchet.rollouts.manager import RolloutManager
from ratchet.rollouts.partition import TrainPartition
from ratchet.rollouts.worker import RolloutResult, RolloutWorker
from ratchet.sessions.failpoints import failpoint
from ratchet.sessions.losses import WeightsMissing
from ratchet.sessions.receipt_book import ReceiptBook
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, WeightVersion
from ratchet.spec.operations import EvaluateArgs, RefitArgs, RolloutArgs
from ratchet.spec.receipts import EvaluateReceipt, RefitReceipt
from ratchet.spec.run_spec import RunSpec

Result = TypeVar("Result")


class LiveGeneratorService:
    """Every call may run beside the others. One thread has the event loop of the rollouts, another one makes
    the calls of the model."""

    def __init__(
        self, spec: RunSpec, run: str, home: Home, partition: TrainPartition, name: str, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        self._generator = create_generator(spec)
        self._engine = LiveEngine(self._generator, alone=spec.generation.deterministic)
        self._receiver = create_receiver(spec.refit, home, run)
        self._book = ReceiptBook()
        self._opened: Path | None = None
        self._cancels: dict[OpId, Callable[[], None]] = {}
        self._cancelled: set[OpId] = set()
        self._refits = threading.Lock()
        environment = create_environment(spec.environment, spec.seed)
        journal = home.run_folder(run) / "journal"
        writer, index = JournalWriter(journal, name), JournalIndex(journal)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True).start()
        self._manager = self._waited(
            _made(
                lambda: RolloutManager(
                    spec, self._engine, self._generator, environment, writer, index, partition
                )
            )
        )
        self._evaluator = RolloutWorker(spec, self._generator, environment, writer, index, partition)

    def receipts(self) -> list[tuple[str, str, dict[str, object]]]:
        """What was carried out here, for a conductor that has to read its log again."""
        return self._book.entries()

    def open(self, model_folder: str, incarnation: int) -> dict[str, str]:
        """Build the model, once; its weights come by refit. Ends what older incarnations asked for: nothing
        of it is put into the data plane after this. Name -> dtype of what a refit must bring."""

        def opened() -> dict[str, str]:
            folder = Path(model_folder)
            if self._opened != folder:
                self._generator.open(folder)
                self._opened = folder
                self._engine.forget_weights()
            return self._generator.wire_dtypes()

        self._waited(self._manager.end_older(incarnation))
        return self._waited(self._engine.between_calls(opened))

    def refit(self, args: RefitArgs, manifest: RefitManifest) -> RefitReceipt:
        """Switch to a staged version. Its bytes are verified before any is used."""

        def effect() -> RefitReceipt:
            started = time.monotonic()
            failpoint("refit.begin")

            wire_bytes = 0

            def load() -> WeightVersion:
                nonlocal wire_bytes
                held = self._engine.version
                if held is None or held.digest != args.version.digest:
                    with self._receiver.open(manifest) as tensors:
                        self._generator.load_weights(tensors)
                    wire_bytes = self._receiver.fetched_bytes
                failpoint("refit.loaded")
                return args.version

            self._waited(self._manager.switch(load))
            return RefitReceipt(
                op=str(args.op),
                engine_s=time.monotonic() - started,
                version=args.version,
                mover=manifest.mover,
                num_tensors=len(manifest.layout.entries),
                num_bytes=manifest.layout.num_bytes,
                wire_digest=manifest.digest,
                wire_bytes=wire_bytes,
                metrics=self._waited(self._manager.report()),
            )

        with self._refits:  # an operation's, and one that brings a new generator up to date
            return self._book.once(args, effect)

    def rollout(self, args: RolloutArgs, keys: Sequence[int]) -> RolloutResult:
        """Finish the groups of `keys`, by whatever weights are live. Again: those that are journaled are
        replayed, not generated."""
        self._book.adopt(args.op)
        failpoint("rollout_batch.begin")

        def known(cancel: Callable[[], None]) -> None:
            self._cancels[args.op] = cancel
            if args.op in self._cancelled:
                cancel()

        try:
            return self._waited(
                self._manager.rollout(
                    keys,
                    args.op.incarnation,
                    on_group=lambda _key: failpoint("rollout_batch.group"),
                    batch_known=known,
                )
            )
        finally:
            self._cancels.pop(args.op, None)

    def refill(self, keys: Sequence[int]) -> None:
        """Put journaled groups into the data plane again, after it lost them."""
        self._waited(self._manager.refill(keys))

    def evaluate(self, args: EvaluateArgs) -> EvaluateReceipt:
        """Greedy answers to held-out problems, all by the one version: no refit comes between them."""

        def effect() -> EvaluateReceipt:
            if self._engine.version != args.version:
                raise WeightsMissing(
                    f"the generator holds weights {self._engine.version or 'of no version'}, not "
                    f"{args.version}: refit",
                    role="generator",
                )
            started = time.monotonic()
            result = self._evaluator.evaluate(args.num_problems)
            return EvaluateReceipt(
                op=str(args.op),
                engine_s=time.monotonic() - started,
                version=args.version,
                num_problems=result.num_problems,
                accuracy=result.accuracy,
                reward_mean=result.reward_mean,
                length_mean=result.length_mean,
            )

        return self._book.once(args, lambda: self._waited(self._engine.between_calls(effect)))

    def cancel(self, op: OpId) -> None:
        """Let the running or coming rollout of `op` end with Cancelled."""
        self._cancelled.add(op)
        if cancel := self._cancels.get(op):
            self._loop.call_soon_threadsafe(cancel)

    def _waited(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _made(make: Callable[[], Result]) -> Result:
    """In the event loop that it is for."""
    return make()
