"""The conductor: carries out a session's operations, exactly once each, in lanes.

Nothing in it that cannot be read again: receipts come back from the actors that hold their effects.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from ratchet.spec import deadlines
from ratchet.spec.faults import RESTARTABLE, Cancelled, Conflict, Fault, FaultKind, RatchetError, as_fault
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.operations import AnyArgs, OpAnswer, OpState
from ratchet.spec.receipts import AnyReceipt
from ratchet.telemetry import logs, tracing

logger = logging.getLogger(__name__)

LOG_LENGTH = 1024
"""Ended operations remembered; the oldest are forgotten first."""
UNWANTED_KEPT = 64


@dataclass(eq=False)
class Operation:
    """One entry of the op log."""

    op: OpId
    args: AnyArgs | None
    """None for an operation read back after it was done: a join needs only the digest."""
    args_digest: str
    state: OpState = OpState.RUNNING
    submits: int = 0
    starts: int = 0
    progress: str = ""
    receipt: AnyReceipt | None = None
    fault: Fault | None = None
    queued_at: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the operation ends."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self) -> OpAnswer:
        receipt = self.receipt
        if receipt is not None:
            receipt = receipt.model_copy(update={"submits": self.submits, "starts": self.starts})
        return OpAnswer(
            op=str(self.op),
            state=self.state,
            submits=self.submits,
            starts=self.starts,
            progress=self.progress,
            receipt=receipt,
            fault=self.fault,
        )


class Executor(Protocol):
    """Carries out operations on engines."""

    async def execute(
        self, args: AnyArgs, progress: Callable[[str], None], cancelled: asyncio.Event
    ) -> AnyReceipt:
        """Do it. Raises a RatchetError; Cancelled when it gave in to `cancelled`."""
        ...

    async def cancel(self, args: AnyArgs) -> None:
        """Tell the engines that a running operation is no longer wanted."""
        ...

    async def abandon(self, args: AnyArgs) -> None:
        """End whatever a running operation is stuck in: it fails, and its engine is lost."""
        ...

    async def recover(self) -> list[tuple[OpId, str, AnyReceipt]]:
        """Operations whose effects the engines hold: (op, digest of its arguments, receipt)."""
        ...


class Conductor:
    """`submit`, `poll` and `cancel` answer at once (poll: within its wait) while lanes work.

    Engine lane: one operation at a time, in order. Writer lane: likewise, beside it. A rollout batch has a
    lane of its own.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._log: OrderedDict[str, Operation] = OrderedDict()
        self._unwanted: OrderedDict[str, None] = OrderedDict()
        """Operations that were cancelled before this conductor had heard of them."""
        self._incarnation = 0
        self._engine_lane = asyncio.Lock()  # asyncio locks are fair: waiters enter in order
        self._writer_lane = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def recover(self) -> None:
        """Read the op log back from the actors; called once, before anything is submitted."""
        for op, digest, receipt in await self._executor.recover():
            entry = Operation(op, None, digest, OpState.DONE, starts=receipt.starts, receipt=receipt)
            entry.changed.set()
            self._log[str(op)] = entry
            self._incarnation = max(self._incarnation, op.incarnation)

    async def submit(self, args: AnyArgs) -> OpAnswer:
        """Start the operation, or join it. Raises Conflict for other arguments or an old incarnation."""
        key = str(args.op)
        entry = self._log.get(key)
        if entry is None:
            if args.op.incarnation < self._incarnation:
                raise Conflict(
                    f"{key} is of incarnation {args.op.incarnation}; this session serves {self._incarnation}"
                )
            if args.op.incarnation > self._incarnation:
                await self._give_up_older(args.op.incarnation)
            entry = self._log[key] = Operation(args.op, args, args.digest())
            if key in self._unwanted:
                entry.cancelled.set()
            self._forget_old()
            self._start(entry, args)
        elif entry.args_digest != args.digest():
            raise Conflict(f"{key} was submitted with other arguments")
        elif entry.state is OpState.FAILED and entry.fault and entry.fault.kind in RESTARTABLE:
            if entry.starts < deadlines.MAX_STARTS:
                self._start(entry, args)
        entry.submits += 1
        return entry.answer()

    async def poll(self, op: OpId, wait: float) -> OpAnswer:
        """The operation's state, after at most `wait` seconds, at once when it ends."""
        entry = self._log.get(str(op))
        if entry is None:
            return OpAnswer(op=str(op), state=OpState.ABSENT)
        try:
            await asyncio.wait_for(entry.changed.wait(), wait)
        except TimeoutError:
            pass  # still running: an answer too
        return entry.answer()

    async def cancel(self, op: OpId) -> OpAnswer:
        """Ask a running operation to end. Its finished work stays; an ended one is left as it is."""
        entry = self._log.get(str(op))
        if entry is None:
            # The one before this conductor knew it, and so will this one in a moment.
            self._unwanted[str(op)] = None
            while len(self._unwanted) > UNWANTED_KEPT:
                self._unwanted.popitem(last=False)
            return OpAnswer(op=str(op), state=OpState.ABSENT)
        await self._tell_to_end(entry)
        return entry.answer()

    async def _tell_to_end(self, entry: Operation) -> None:
        """Set the flag that ends it at its next step, whether or not an engine can be told as well."""
        if entry.args is None or entry.state is not OpState.RUNNING or entry.cancelled.is_set():
            return
        entry.cancelled.set()
        try:
            await self._executor.cancel(entry.args)
        except RatchetError as fault:
            logger.warning("%s: no engine can be told to end it: %s", entry.op, fault)

    async def _give_up_older(self, incarnation: int) -> None:
        """Adopt a higher incarnation: what an older one still does is not wanted any more."""
        self._incarnation = incarnation
        for entry in list(self._log.values()):
            if entry.op.incarnation < incarnation and entry.state is OpState.RUNNING:
                await self._tell_to_end(entry)
                self._spawn(self._end_in_time(entry), f"end {entry.op}")

    async def _end_in_time(self, entry: Operation) -> None:
        """What does not end by itself must not keep its lane from the incarnation that is to go on. A
        checkpoint may: it is whole, and has a lane of its own."""
        if entry.args is None or entry.op.kind is OpKind.COMMIT_CHECKPOINT:
            return
        await asyncio.wait([asyncio.ensure_future(entry.changed.wait())], timeout=deadlines.OVER_GRACE)
        if entry.state is OpState.RUNNING:
            logger.error("%s is over and does not end: its engine is ended", entry.op)
            await self._executor.abandon(entry.args)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start(self, entry: Operation, args: AnyArgs) -> None:
        entry.state, entry.fault = OpState.RUNNING, None
        entry.changed.clear()
        entry.queued_at = asyncio.get_running_loop().time()
        self._spawn(self._run(entry, args), str(entry.op))

    async def _run(self, entry: Operation, args: AnyArgs) -> None:
        with logs.about_operation(entry.op), tracing.operation("conductor", entry.op):
            await self._in_its_lane(entry, args)

    async def _in_its_lane(self, entry: Operation, args: AnyArgs) -> None:
        match entry.op.kind:
            case OpKind.ROLLOUT_BATCH:
                await self._carry_out(entry, args)
            case OpKind.COMMIT_CHECKPOINT:
                async with self._writer_lane:
                    await self._carry_out(entry, args)
            case _:
                async with self._engine_lane:
                    await self._carry_out(entry, args)

    async def _carry_out(self, entry: Operation, args: AnyArgs) -> None:
        def progress(text: str) -> None:
            entry.progress = text

        queued_s = asyncio.get_running_loop().time() - entry.queued_at
        try:
            if entry.cancelled.is_set():
                raise Cancelled(f"{entry.op} was cancelled before it began")
            entry.starts += 1
            receipt = await self._executor.execute(args, progress, entry.cancelled)
            entry.receipt = receipt.model_copy(update={"queued_s": queued_s})
            entry.state = OpState.DONE
        except Exception as error:
            entry.fault = as_fault(error, role="conductor")
            entry.state = OpState.POISONED if entry.fault.kind is FaultKind.POISONED else OpState.FAILED
            logger.warning(
                "%s failed: %s: %s", entry.op, entry.fault.kind.value, entry.fault.message, exc_info=error
            )
        finally:
            entry.changed.set()

    def _forget_old(self) -> None:
        while len(self._log) > LOG_LENGTH:
            oldest = next(iter(self._log))
            if self._log[oldest].state is OpState.RUNNING:
                return
            del self._log[oldest]
