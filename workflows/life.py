"""The life of a run within one execution: what the loops use to act, record, checkpoint and evaluate."""

import asyncio
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ratchet.spec import names
from ratchet.spec.control import EvaluationEntry, EventEntry, StateEntry
from ratchet.spec.faults import Cancelled, ClusterLost, Fault, FaultKind, Incident, RatchetError, Reset
from ratchet.spec.ids import OpId, OpKind, WeightVersion
from ratchet.spec.operations import AnyArgs, EvaluateArgs, RolloutArgs
from ratchet.spec.receipts import EvaluateReceipt, Receipt, RolloutReceipt, TrainReceipt
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import CheckpointRef, RunInput, RunPhase, RunState, RunStatus, Slot
from workflows.admission import admitted_already, release
from workflows.calls import SessionCalls
from workflows.checkpoints import Checkpoints
from workflows.failures import fault_of
from workflows.records import Records, register_run
from workflows.summaries import summary

ReceiptT = TypeVar("ReceiptT", bound=Receipt)

MAX_EVENTS = 2_000
"""Continue as new past so many history events; the server suggests it only past 4,096."""


class Life:
    """Everything here is rebuilt from RunState by the next execution."""

    def __init__(self, spec: RunSpec, state: RunState) -> None:
        self.spec = spec
        self.state = state
        self.registered = state.session_open
        self.closing = False
        """Nothing can be asked of the run any more: its session is being closed."""
        self.progressed_at = workflow.time()
        """When something was last committed, as far as the workflow knows."""
        self.records = Records(state, self._put_on_record)
        self.calls = SessionCalls(spec, state, self._show, self.note)
        self.checkpoints = Checkpoints(self)
        self._went_back = False
        self._steps_here = 0

    # --- acting

    def op(self, step: int, kind: OpKind) -> OpId:
        return OpId(run=self.state.run, incarnation=self.state.incarnation, step=step, kind=kind)

    def head(self) -> WeightVersion:
        """The policy as the trainer holds it."""
        assert self.state.head is not None, "nothing runs before a head was restored"
        return self.state.head

    async def run(self, args: AnyArgs, expected: type[ReceiptT]) -> ReceiptT:
        """Carry out an operation, or join it. Raises ActivityError with its fault, ClusterLost, ActorLost, or
        Reset.

        Cancelled, it lets go of the operation, which goes on.
        """
        self.still_here()
        operation = asyncio.create_task(self.calls.run(args, expected))
        operation.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await workflow.wait_condition(lambda: operation.done() or self._went_back)
        finally:
            if not operation.done():
                operation.cancel()
        self.still_here()
        receipt = await operation
        self.progressed()
        for number, part in enumerate(receipt.recovered):
            done = f"replaced while the run went on ({summary(args)})"
            self.note(
                f"recovered/{args.op}/{number}",
                Incident(
                    lost=part.role,
                    cause=part.cause,
                    detected_at=part.detected_at,
                    done=done,
                    seconds=part.seconds,
                ),
            )
        return receipt

    async def rollout_unless_stopped(self, args: RolloutArgs) -> RolloutReceipt | None:
        """The batch's receipt; None when a stop came first. What was finished by then stays journaled."""
        rollout = asyncio.create_task(self.run(args, RolloutReceipt))
        await workflow.wait_condition(lambda: rollout.done() or self.state.stop_requested)
        if not self.state.stop_requested:
            return await rollout
        if not rollout.done():
            try:
                await self.calls.cancel(args.op)
            except ActivityError as error:
                rollout.cancel()
                raise ClusterLost(f"{args.op} cannot be told to end: {fault_of(error).message}") from error
        try:
            await rollout
        except (ActivityError, Cancelled) as error:
            if fault_of(error).kind is not FaultKind.CANCELLED:
                raise
        return None

    async def evaluate(self) -> None:
        """Held-out accuracy of the head."""
        step, count = self.state.step, self.spec.evaluation.num_problems
        if not count:
            return
        receipt = await self.run(
            EvaluateArgs(op=self.op(step, OpKind.EVALUATE), version=self.head(), num_problems=count),
            EvaluateReceipt,
        )
        self.records.start(f"evaluation at step {step}", EvaluationEntry(step=step, receipt=receipt))

    def trained(self, receipt: TrainReceipt, step: int, cursor: int) -> None:
        """The head moved on by a step."""
        state = self.state
        state.step, state.cursor, state.head = step, cursor, receipt.version
        state.recoveries = 0
        self._steps_here += 1

    def hyperparameters(self, step: int) -> dict[str, float]:
        """The changed values of spec keys that hold for a step, whenever it is trained."""
        changed: dict[str, float] = {}
        for change in self.state.hyperparameters:
            if change.from_step <= step:
                changed |= change.values
        return changed

    def extend(self, max_num_steps: int) -> None:
        """Train to another last step."""
        grpo = self.spec.grpo.model_copy(update={"max_num_steps": max_num_steps})
        self.spec = self.calls.spec = self.spec.model_copy(update={"grpo": grpo})

    # --- noticing

    def went_back(self, seed: int) -> None:  # noqa: ARG002 - what the SDK calls it with
        """The workflow was reset: it gets another random seed, the only sign of it that replays."""
        self._went_back = True

    def still_here(self) -> None:
        """Raises Reset if the history went back: the actors are ahead of what this execution knows."""
        if self._went_back:
            raise Reset("the workflow was reset to an earlier point of its history")

    def go_back(self, checkpoint: CheckpointRef | None) -> None:
        """What the run is from here on: whoever trained on from `checkpoint` (None: the base model)."""
        state = self.state
        state.last_checkpoint = checkpoint
        state.restored_from = checkpoint.path if checkpoint else None
        state.step = checkpoint.version.step if checkpoint else 0
        state.cursor = checkpoint.cursor if checkpoint else 0
        state.head = state.refitted = None
        state.open_operations = []
        state.ahead = []
        self._went_back = False

    def progressed(self) -> None:
        self.progressed_at = workflow.time()

    def note(self, key: str, incident: Incident) -> None:
        """Write down something that went wrong, for people; `key` is unique within the incarnation."""
        if self.state.cause is None:  # else what the run recovers from is what people want to know
            self.state.incident = incident
        if self.registered:
            event = EventEntry(
                key=key,
                topic=names.TOPIC_INCIDENT,
                message=str(incident),
                data=incident.model_dump(mode="json"),
            )
            self.records.start(f"incident: {incident.lost}", event)

    def enter(self, phase: RunPhase, fault: Fault | None = None) -> None:
        """Change the run's state, for everybody to see."""
        self.state.phase = phase
        self.records.start_steps()
        self.records.show(phase)
        self._show()
        if self.registered:
            entry = StateEntry(phase=phase, step=self.state.step, fault=fault)
            self.records.start(f"state {phase.value}", entry)

    def status(self) -> RunStatus:
        state = self.state
        return RunStatus(
            run=state.run,
            phase=state.phase,
            incarnation=state.incarnation,
            step=state.step,
            max_num_steps=self.spec.grpo.max_num_steps,
            doing=[summary(args) for args in self.calls.open.values()],
            paused=state.paused,
            stop_requested=state.stop_requested,
            head=state.head,
            last_checkpoint=state.last_checkpoint,
            incident=str(state.incident) if state.incident else None,
        )

    def _show(self) -> None:
        """Keep the Temporal UI's page of this workflow readable."""
        if not workflow.in_workflow():
            return  # an operation that an ended execution left open is being collected
        state, doing = self.state, [f"- {summary(args)}" for args in self.calls.open.values()]
        headline = f"**{state.phase.value}**, step {state.step} of {self.spec.grpo.max_num_steps}"
        workflow.set_current_details("\n".join([headline, "", *doing]))

    async def _put_on_record(self) -> None:
        """The store has lost the run: it goes on, and can be filled again later."""
        state, now = self.state, workflow.time()
        await register_run(self.spec, state)
        await admitted_already(self)
        self.note(
            f"store/{now}",
            Incident(
                lost="store",
                cause="it knew nothing of this run any more",
                detected_at=now,
                done=f"put on record again; `ratchet rebuild store {state.run}` brings back what was before",
            ),
        )
        entry = StateEntry(phase=state.phase, step=state.step)
        self.records.start(f"state {state.phase.value}", entry)

    # --- boundary and end

    async def boundary(self) -> None:
        """Between two steps: a checkpoint that was asked for is made, a failed one is noticed, a pause waits
        here, a long history ends here."""
        state = self.state
        await self.checkpoints.noticed()
        while not state.stop_requested:
            self.still_here()
            if state.checkpoint_requested:
                state.checkpoint_requested = False
                await self.checkpoints.save()
            if not state.paused:
                break
            if state.phase is not RunPhase.PAUSED:
                self.enter(RunPhase.PAUSED)
            await workflow.wait_condition(
                lambda: (
                    not state.paused or state.stop_requested or state.checkpoint_requested or self._went_back
                )
            )
        if state.phase is RunPhase.PAUSED:
            self.progressed()
            self.enter(RunPhase.RUNNING)
        if self.long:
            await self.continue_as_new(self.checkpoints.open)

    async def finish(self) -> None:
        """Save the head, evaluate it, take the session down. Without a head, the run ends where it can be
        restored to. Returns early if the run was extended meanwhile."""
        state = self.state
        completed = state.step >= self.spec.grpo.max_num_steps
        if not completed:
            self.enter(RunPhase.STOPPING)
        if state.head is not None:
            await self.checkpoints.save(final=True)
            if completed and self.spec.evaluation.at_end:
                await self.evaluate()
            await self.checkpoints.insist()
        if completed and state.step < self.spec.grpo.max_num_steps:
            return
        await self._close()
        self.enter(RunPhase.COMPLETED if completed else RunPhase.STOPPED)
        await self.records.written()

    async def fail(self, fault: Fault) -> None:
        """Say what ended the run, and take the session down, as far as either is possible."""
        self.records.forget()
        self.enter(RunPhase.FAILED, fault)
        await self._close()
        try:
            await self.records.written()
        except ActivityError as error:
            workflow.logger.warning("while ending a failed run: %s", fault_of(error).message)

    async def _close(self) -> None:
        self.closing = True
        if self.state.slot is not Slot.NONE or self.state.session_open:  # else nothing was ever opened
            await self._close_session()
        await release(self)

    async def _close_session(self) -> None:
        closed_at = workflow.time()
        try:
            await self.calls.close_session()
        except (ActivityError, RatchetError) as error:
            done = "the run ended; `ratchet status` shows what is left of it"
            cause = f"it could not be closed: {fault_of(error).message}"
            self.note(
                f"close/{closed_at}", Incident(lost="session", cause=cause, detected_at=closed_at, done=done)
            )
        self.state.session_open = False

    async def settled(self) -> None:
        """No update handler runs and every record is in the store. In a loop: a handler, or a checkpoint that
        is committed just now, may start a record while others are awaited, and it would end with us."""
        while not workflow.all_handlers_finished() or self.records.pending or self.checkpoints.tidying:
            await workflow.wait_condition(
                lambda: workflow.all_handlers_finished() and not self.checkpoints.tidying
            )
            await self.records.written()

    @property
    def long(self) -> bool:
        """Whether this execution has lasted long enough."""
        return (
            self._steps_here >= self.spec.runtime.continue_as_new_every_steps
            or workflow.info().get_current_history_length() >= MAX_EVENTS
        )

    async def continue_as_new(self, open_operations: list[Any]) -> None:
        """Go on in another execution, which joins the operations that are open."""
        await self.settled()
        self.state.open_operations = open_operations
        workflow.continue_as_new(RunInput(spec=self.spec, state=self.state))
