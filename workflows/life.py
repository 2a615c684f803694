"""The life of a run within one execution: what the loops use to act, record, checkpoint and evaluate."""

import asyncio
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from ratchet.spec import names
from ratchet.spec.control import (
    AnyEntry,
    CheckpointEntry,
    EvaluationEntry,
    IncarnationEntry,
    StateEntry,
    StepEntry,
)
from ratchet.spec.faults import Fault, FaultKind
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import (
    AnyArgs,
    CommitArgs,
    EvaluateArgs,
    RefitArgs,
    RestoreArgs,
    RolloutArgs,
    SnapshotArgs,
)
from ratchet.spec.receipts import (
    CheckpointReceipt,
    EvaluateReceipt,
    Receipt,
    RefitReceipt,
    RestoreReceipt,
    RolloutReceipt,
    SnapshotReceipt,
)
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import CheckpointRef, RunInput, RunPhase, RunState, RunStatus
from workflows.calls import SessionCalls, register_run, start_record
from workflows.failures import fault_of
from workflows.summaries import summary

ReceiptT = TypeVar("ReceiptT", bound=Receipt)

MAX_EVENTS = 2_000
"""Continue as new past so many history events; the server suggests it only past 4,096."""

RECORD_EVERY = 1.0
"""Seconds between two records of steps; far below what a person notices, and an argument stays small."""

STATE = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATE)
STEP = SearchAttributeKey.for_int(names.ATTRIBUTE_STEP)


class Life:
    """Everything here is rebuilt from RunState by the next execution."""

    def __init__(self, spec: RunSpec, state: RunState) -> None:
        self.spec = spec
        self.state = state
        self.registered = state.session_open
        self._calls = SessionCalls(spec, state, self._show)
        self._records: list[ActivityHandle[Any]] = []
        self._steps: list[StepEntry] = []
        self._recorded_at = 0.0
        self._commit: asyncio.Task[None] | None = None
        self._first_step = state.step

    # --- acting

    def op(self, step: int, kind: OpKind) -> OpId:
        return OpId(run=self.state.run, incarnation=self.state.incarnation, step=step, kind=kind)

    def head(self) -> WeightVersion:
        """The policy as the trainer holds it."""
        assert self.state.head is not None, "start() restores a head before anything else runs"
        return self.state.head

    async def run(self, args: AnyArgs, expected: type[ReceiptT]) -> ReceiptT:
        """Carry out an operation, or join it."""
        return await self._calls.run(args, expected)

    async def rollout_unless_stopped(self, args: RolloutArgs) -> RolloutReceipt | None:
        """The batch's receipt; None when a stop came first. What was finished by then stays journaled."""
        rollout = asyncio.create_task(self.run(args, RolloutReceipt))
        await workflow.wait_condition(lambda: rollout.done() or self.state.stop_requested)
        if not self.state.stop_requested:
            return await rollout
        await self._calls.cancel(args.op)
        try:
            await rollout
        except ActivityError as error:
            if fault_of(error).kind is not FaultKind.CANCELLED:
                raise
        return None

    # --- writing it down

    async def record(self, what: str, *entries: AnyEntry) -> None:
        """Write rows while the run goes on: waits for *earlier* records only, so a store that is away
        holds the run up after one step, not at once, and for good only past a deadline."""
        earlier, self._records = self._records, [start_record(self.state, what, *entries)]
        for handle in earlier:
            await handle

    async def record_step(self, entry: StepEntry) -> None:
        """Write a step down. Steps that take less than RECORD_EVERY travel together: a record costs the
        server as much as an operation does."""
        self._steps.append(entry)
        if entry.finished_at - self._recorded_at >= RECORD_EVERY:
            await self._flush_steps()

    async def _flush_steps(self) -> None:
        steps, self._steps = self._steps, []
        if steps:
            self._recorded_at = steps[-1].finished_at
            _search_attributes(STEP.value_set(steps[-1].step))
            first, last = steps[0].step, steps[-1].step
            await self.record(f"step {last}" if first == last else f"steps {first} to {last}", *steps)

    async def recorded(self) -> None:
        """All records are in the store."""
        await self._flush_steps()
        earlier, self._records = self._records, []
        for handle in earlier:
            await handle

    async def enter(self, phase: RunPhase, fault: Fault | None = None) -> None:
        """Change the run's state, for everybody to see."""
        await self._flush_steps()
        self.state.phase = phase
        _search_attributes(STATE.value_set(phase.value), STEP.value_set(self.state.step))
        self._show()
        await self.record(f"state {phase.value}", StateEntry(phase=phase, step=self.state.step, fault=fault))

    def status(self) -> RunStatus:
        state = self.state
        return RunStatus(
            run=state.run,
            phase=state.phase,
            incarnation=state.incarnation,
            step=state.step,
            max_num_steps=self.spec.grpo.max_num_steps,
            doing=[summary(args) for args in self._calls.open.values()],
            paused=state.paused,
            stop_requested=state.stop_requested,
            head=state.head,
            last_checkpoint=state.last_checkpoint,
        )

    def _show(self) -> None:
        """Keep the Temporal UI's page of this workflow readable."""
        state, doing = self.state, [f"- {summary(args)}" for args in self._calls.open.values()]
        headline = f"**{state.phase.value}**, step {state.step} of {self.spec.grpo.max_num_steps}"
        workflow.set_current_details("\n".join([headline, "", *doing]))

    # --- start, boundary, end

    async def start(self) -> None:
        """Open the session and restore the head; after continue-as-new only join what is open."""
        state = self.state
        if not state.session_open:
            await register_run(self.spec, state)
            self.registered = True
            await self._calls.open_session()
            state.session_open = True
        for args in state.open_operations:
            assert isinstance(args, CommitArgs), "at a boundary only a checkpoint can be open"
            self._start_commit(args)
        state.open_operations = []
        if state.head is None:
            restored = await self.run(
                RestoreArgs(
                    op=self.op(state.step, OpKind.RESTORE),
                    checkpoint=state.last_checkpoint.path if state.last_checkpoint else None,
                ),
                RestoreReceipt,
            )
            state.head = restored.version
            await self.record(f"incarnation {state.incarnation}", IncarnationEntry(receipt=restored))
        if state.refitted != state.head:
            version = self.head()
            await self.run(RefitArgs(op=self.op(state.step, OpKind.REFIT), version=version), RefitReceipt)
            state.refitted = version
        if self.spec.evaluation.at_start and not state.evaluated_at_start:
            await self.evaluate()
            state.evaluated_at_start = True
        if state.phase is RunPhase.STARTING:
            await self.enter(RunPhase.RUNNING)

    async def boundary(self) -> None:
        """Between two steps: a failed checkpoint is noticed, a pause waits here, a long history ends here."""
        state = self.state
        if self._commit is not None and self._commit.done():
            await self._commit
        if state.paused and not state.stop_requested:
            await self.enter(RunPhase.PAUSED)
            await workflow.wait_condition(lambda: not state.paused or state.stop_requested)
            await self.enter(RunPhase.RUNNING)
        steps_here = state.step - self._first_step
        if steps_here >= self.spec.runtime.continue_as_new_every_steps or (
            steps_here and workflow.info().get_current_history_length() >= MAX_EVENTS
        ):
            await self._continue_as_new()

    async def finish(self) -> None:
        """Save the head, evaluate it, take the session down."""
        state = self.state
        completed = state.step >= self.spec.grpo.max_num_steps
        if not completed:
            await self.enter(RunPhase.STOPPING)
        if self._commit is not None:
            await self._commit  # it may be the head's
        if state.last_checkpoint is None or state.last_checkpoint.version != state.head:
            await self.checkpoint(final=True)
        if completed and self.spec.evaluation.at_end:
            await self.evaluate()
        if self._commit is not None:
            await self._commit
        await self._calls.close_session()
        state.session_open = False
        await self.enter(RunPhase.COMPLETED if completed else RunPhase.STOPPED)
        await self.recorded()

    async def fail(self, fault: Fault) -> None:
        """Say what ended the run, and take the session down, as far as either is possible."""
        self._records = []  # one of them may be what failed
        await self.enter(RunPhase.FAILED, fault)
        for last_duty in (self._calls.close_session, self.recorded):
            try:
                await last_duty()
            except ActivityError as error:
                workflow.logger.warning("while ending a failed run: %s", fault_of(error).message)

    async def settled(self) -> None:
        """No update handler runs and every record is in the store. In a loop: a handler, or a checkpoint that
        is committed just now, may start a record while others are awaited, and it would end with us."""
        while not workflow.all_handlers_finished() or self._records or self._steps:
            await workflow.wait_condition(workflow.all_handlers_finished)
            await self.recorded()

    async def _continue_as_new(self) -> None:
        await self.settled()
        self.state.open_operations = self._calls.open_args()
        workflow.continue_as_new(RunInput(spec=self.spec, state=self.state))

    # --- checkpoints and evaluations

    async def checkpoint(self, *, final: bool = False) -> None:
        """Copy the head, then write it while training goes on; waits for the previous write first."""
        if self._commit is not None:
            await self._commit
        state, version = self.state, self.head()
        await self.run(
            SnapshotArgs(op=self.op(state.step, OpKind.SNAPSHOT), version=version, cursor=state.cursor),
            SnapshotReceipt,
        )
        export = self.spec.checkpointing.hf_export
        self._start_commit(
            CommitArgs(
                op=self.op(state.step, OpKind.COMMIT_CHECKPOINT),
                version=version,
                cursor=state.cursor,
                hf_export=export == "every" or (export == "final" and final),
            )
        )

    def _start_commit(self, args: CommitArgs) -> None:
        self._commit = asyncio.create_task(self._commit_checkpoint(args))

    async def _commit_checkpoint(self, args: CommitArgs) -> None:
        receipt = await self.run(args, CheckpointReceipt)
        self.state.last_checkpoint = CheckpointRef(
            path=receipt.path, digest=receipt.digest, version=receipt.version, cursor=args.cursor
        )
        await self.record(
            f"checkpoint of step {args.op.step}",
            CheckpointEntry(step=args.op.step, cursor=args.cursor, receipt=receipt),
        )

    async def evaluate(self) -> None:
        """Held-out accuracy of the head."""
        step, count = self.state.step, self.spec.evaluation.num_problems
        if not count:
            return
        receipt = await self.run(
            EvaluateArgs(op=self.op(step, OpKind.EVALUATE), version=self.head(), num_problems=count),
            EvaluateReceipt,
        )
        await self.record(f"evaluation at step {step}", EvaluationEntry(step=step, receipt=receipt))


def _search_attributes(*updates: SearchAttributeUpdate[Any]) -> None:
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]
