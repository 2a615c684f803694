"""Checkpoints are copied at a step boundary, and written while training goes on."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ratchet.spec import deadlines
from ratchet.spec.control import CheckpointEntry
from ratchet.spec.faults import Fault, Incident, RatchetError, StorageFault
from ratchet.spec.ids import OpKind
from ratchet.spec.operations import AnyArgs, CommitArgs, SnapshotArgs
from ratchet.spec.receipts import CheckpointReceipt, SnapshotReceipt
from ratchet.spec.state import CheckpointRef
from workflows.failures import NOT_STORED, fault_of
from workflows.records import retain

if TYPE_CHECKING:
    from workflows.life import Life


class Checkpoints:
    """At most one is written at a time. One that cannot be stored costs an incident, not the run: the next
    one that is due tries again, and only the last one has to succeed."""

    def __init__(self, life: "Life") -> None:
        self._life = life
        self._args: CommitArgs | None = None
        self._writing: asyncio.Task[None] | None = None
        self._fault: Fault | None = None
        """Why the newest one could not be stored."""
        self.tidying = False
        """What retention does not keep is being deleted."""

    @property
    def open(self) -> list[AnyArgs]:
        """What is being written, for the next execution to join."""
        return [self._args] if self._args and self._writing and not self._writing.done() else []

    def join(self, args: AnyArgs) -> None:
        """Go on with what the last execution left open."""
        assert isinstance(args, CommitArgs), "at a boundary only a checkpoint can be open"
        self._start(args)

    async def save(self, *, final: bool = False) -> None:
        """Copy the head and begin to write it, unless that was done; waits for the write before it first."""
        await self.written()
        life, state = self._life, self._life.state
        if self._saved():
            return
        version = life.head()
        await life.run(
            SnapshotArgs(
                op=life.op(state.step, OpKind.SNAPSHOT),
                version=version,
                cursor=state.cursor,
                finished=state.finished,
            ),
            SnapshotReceipt,
        )
        op, export = life.op(state.step, OpKind.COMMIT_CHECKPOINT), life.spec.checkpointing.hf_export
        if state.not_stored is not None and state.not_stored.op == op:
            self._start(state.not_stored)
            return
        # A stop that was asked for makes this the last one, even if it was due anyway.
        hf_export = export == "every" or (export == "final" and (final or state.stop_requested))
        args = CommitArgs(
            op=op, version=version, cursor=state.cursor, finished=state.finished, hf_export=hf_export
        )
        self._start(args)

    async def insist(self) -> None:
        """The head is saved. Raises StorageFault after MAX_STARTS tries, five minutes in all."""
        await self.written()
        for _ in range(deadlines.MAX_STARTS - 1):
            if self._saved():
                return
            await workflow.sleep(deadlines.FINAL_CHECKPOINT_PAUSE)
            await self.save(final=True)
            await self.written()
        if not self._saved():
            assert self._fault is not None
            raise StorageFault(self._fault.message, role=self._fault.role)

    async def noticed(self) -> None:
        """Raises what a write that has ended has failed with."""
        if self._writing is not None and self._writing.done():
            await self.written()

    async def written(self) -> None:
        """Wait for the write that goes on, if any. Raises what it fails with."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def settle(self) -> None:
        """Before a recovery: let a write end, for a while, whichever way it does; then give it up."""
        writing, self._writing, self._args = self._writing, None, None
        if writing is None:
            return
        try:
            await workflow.wait_condition(writing.done, timeout=timedelta(seconds=deadlines.SETTLE_COMMIT))
        except TimeoutError:
            writing.cancel()
        try:
            await writing
        except (ActivityError, RatchetError, asyncio.CancelledError) as error:
            workflow.logger.warning("the checkpoint that was being written is given up: %s", error)

    def _start(self, args: CommitArgs) -> None:
        self._args = args
        self._writing = asyncio.create_task(self._write(args))

    def _saved(self) -> bool:
        """The head is in a checkpoint of this run."""
        state = self._life.state
        last, head, origin = state.last_checkpoint, state.head, state.forked_from
        if last is None or head is None or (origin and origin.checkpoint.path == last.path):
            return False
        return (last.version.step, last.version.digest) == (head.step, head.digest)

    async def _write(self, args: CommitArgs) -> None:
        life, step = self._life, args.op.step
        try:
            receipt = await life.run(args, CheckpointReceipt)
        except ActivityError as error:
            fault = fault_of(error)
            if fault.kind not in NOT_STORED:
                raise
            life.state.not_stored = args
            self._fault, now = fault, workflow.time()
            done = f"the run goes on without a checkpoint of step {step}, and the next one tries again"
            self._life.note(
                f"checkpoint/{step}/{now}",
                Incident(lost="storage", cause=fault.message, detected_at=now, done=done),
            )
            return
        life.state.not_stored = None
        life.state.last_checkpoint = CheckpointRef(
            path=receipt.path, digest=receipt.digest, version=receipt.version, cursor=args.cursor
        )
        life.records.start(
            f"checkpoint of step {step}",
            CheckpointEntry(step=step, cursor=args.cursor, receipt=receipt),
            incarnation=args.op.incarnation,
        )
        await self._tidy()

    async def _tidy(self) -> None:
        self.tidying = True
        now = workflow.time()
        try:
            await retain(self._life.spec, self._life.state)
        except ActivityError as error:
            done = "superfluous checkpoints stay until the next one is committed"
            self._life.note(
                f"retain/{now}",
                Incident(lost="storage", cause=fault_of(error).message, detected_at=now, done=done),
            )
        finally:
            self.tidying = False
