"""Coming alive, and coming back: from whatever was lost to trained weights in a session that works."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from ratchet.spec import deadlines
from ratchet.spec.control import IncarnationEntry, RestorePoint
from ratchet.spec.faults import (
    CheckpointDamaged,
    Fault,
    FaultKind,
    Incident,
    RatchetError,
    Reset,
    StorageFault,
    as_error,
)
from ratchet.spec.ids import OpKind
from ratchet.spec.operations import RefitArgs, RestoreArgs
from ratchet.spec.receipts import RefitReceipt, RestoreReceipt
from ratchet.spec.state import RunPhase
from workflows.admission import admitted
from workflows.failures import MAX_RECOVERIES, RECOVERABLE, fault_of, lost_part
from workflows.life import Life
from workflows.records import choose_checkpoint, register_run


def lose(life: Life, error: ActivityError | RatchetError) -> None:
    """Something went wrong: the run is to recover from it. Raises what no recovery helps against."""
    state, fault = life.state, _named(fault_of(error))
    if state.cause is not None:
        _over(life, "lost again before it could go on", usable=False)
    if not isinstance(error, CheckpointDamaged):
        if fault.kind not in RECOVERABLE:
            raise error
        if state.recoveries == MAX_RECOVERIES:
            message = f"{MAX_RECOVERIES} recoveries in a row led to no step; the last cause: {fault.message}"
            raise as_error(fault.model_copy(update={"message": message})) from error
        state.recoveries += 1
    state.incident = Incident(
        lost=lost_part(fault), cause=fault.message, detected_at=workflow.time(), done="going back"
    )
    state.cause = fault


def _named(fault: Fault) -> Fault:
    """A reset to the very beginning of an execution comes before anybody can ask to be told of it. It shows
    when something is asked for that a newer execution or incarnation has asked for already."""
    info = workflow.info()
    if fault.kind is FaultKind.CONFLICT and info.run_id != info.original_execution_run_id:
        return Reset(f"the workflow was reset to its beginning: {fault.message}").fault()
    return fault


async def come_alive(life: Life) -> None:
    """A session with the head's weights in it: begun, joined as it was left, or recovered. A stop ends a
    recovery where the run would go on from, without a head."""
    state = life.state
    if state.cause is None:
        life.still_here()
    if not state.must_restore and state.cause is None:
        if state.head is None and state.last_checkpoint is None and state.forked_from is not None:
            life.go_back(state.forked_from.checkpoint)
        await _restored(life)
        return
    await _go_back(life)
    restoring = asyncio.create_task(_restored(life))
    await workflow.wait_condition(lambda: restoring.done() or state.stop_requested)
    if not state.stop_requested:
        await restoring
        return
    restoring.cancel()
    try:
        await restoring
    except (ActivityError, RatchetError, asyncio.CancelledError) as error:
        workflow.logger.info("the run stops, and does not wait for its restore: %s", error)
    life.go_back(state.last_checkpoint)
    state.must_restore = False
    if state.cause is not None:
        _over(life, "the run was stopped", usable=False)


async def _go_back(life: Life) -> None:
    """Choose where to go on from, as another incarnation."""
    state = life.state
    if life.registered:
        life.enter(RunPhase.RECOVERING, state.cause)
    await life.checkpoints.settle()
    if life.long:
        await life.continue_as_new([])
    if state.recoveries > 1:
        await _pause(life, deadlines.RECOVERY_PAUSE * 2 ** (state.recoveries - 2))
    point = await choose_checkpoint(state)
    origin = state.forked_from.checkpoint if state.forked_from else None
    known = state.last_checkpoint
    if point.checkpoint is None and known is not None and (origin is None or known.path != origin.path):
        raise StorageFault(
            f"every checkpoint is unusable: {known.path} was committed and is gone; bring it back, or "
            "go on without it, from the start"
        )
    life.go_back(point.checkpoint or origin)
    state.incarnation = max(point.highest_incarnation, state.incarnation) + 1
    await _on_record(life)
    _tell_passed_over(life, point)


async def _restored(life: Life) -> None:
    """The session is open, the trainer holds the head, and so do the generators; unless the run is to stop
    before it is admitted."""
    state = life.state
    await _on_record(life)
    if not state.session_open or state.cause is not None:
        if not await admitted(life):
            return
        session = await life.calls.open_session()
        state.session_open = True
        if session.cluster_lost and state.incident:  # an engine without weights was only what showed it
            state.incident = state.incident.model_copy(
                update={"lost": "ray cluster", "cause": session.cluster_lost}
            )
    for args in state.open_operations:
        life.checkpoints.join(args)
    state.open_operations = []
    if state.head is None:
        await _restore(life)
    if state.refitted != state.head:
        version = life.head()
        await life.run(RefitArgs(op=life.op(state.step, OpKind.REFIT), version=version), RefitReceipt)
        state.refitted = version
    state.must_restore = False
    if state.cause is not None:
        _over(life, "the run goes on")
    if life.spec.evaluation.at_start and not state.evaluated_at_start and state.step == 0:
        await life.evaluate()
        state.evaluated_at_start = True
    if state.phase in (RunPhase.STARTING, RunPhase.RECOVERING, RunPhase.STALLED):
        life.enter(RunPhase.RUNNING)


async def _on_record(life: Life) -> None:
    state = life.state
    if not life.registered:
        state.session = max(state.session, state.incarnation)
        await register_run(life.spec, state)
        life.registered = True


async def _restore(life: Life) -> None:
    """Load what the run goes on from. Raises CheckpointDamaged if there may be an older one."""
    state = life.state
    checkpoint, origin = state.last_checkpoint, state.forked_from
    parents = checkpoint is not None and origin is not None and checkpoint.path == origin.checkpoint.path
    args = RestoreArgs(
        op=life.op(state.step, OpKind.RESTORE),
        checkpoint=checkpoint.path if checkpoint else None,
        checkpoint_run=origin.run if origin and parents else None,
    )
    try:
        receipt = await life.run(args, RestoreReceipt)
    except ActivityError as error:
        fault = fault_of(error)
        if fault.kind is not FaultKind.DAMAGED or checkpoint is None or parents:
            raise
        state.avoid.append(checkpoint.path)
        raise CheckpointDamaged(fault.message, role=fault.role) from error
    state.head = receipt.version
    state.finished, state.drawn, state.batches = receipt.finished, state.cursor, state.step
    life.records.start(f"incarnation {state.incarnation}", IncarnationEntry(receipt=receipt))


async def _pause(life: Life, seconds: float) -> None:
    """What was lost again at once needs a moment; a stop does not wait for it."""
    try:
        await workflow.wait_condition(lambda: life.state.stop_requested, timeout=timedelta(seconds=seconds))
    except TimeoutError:
        pass


def _over(life: Life, outcome: str, *, usable: bool = True) -> None:
    """Write down what the recovery was from, and what became of it."""
    state = life.state
    assert state.incident is not None, "a recovery begins with an incident"
    source = state.restored_from.rpartition("/")[2] if state.restored_from else "the base model"
    incident = state.incident.model_copy(
        update={
            "done": f"back to step {state.step} ({source}) as incarnation {state.incarnation}; {outcome}",
            "seconds": workflow.time() - state.incident.detected_at if usable else None,
        }
    )
    state.cause = None
    life.note(f"recovery/{state.incarnation}/{incident.detected_at}", incident)


def _tell_passed_over(life: Life, point: RestorePoint) -> None:
    """Newer checkpoints that cannot be used, apart from those that were told of when they were loaded."""
    for number, line in enumerate(point.passed_over):
        if not any(path in line for path in life.state.avoid):
            now = workflow.time()
            incident = Incident(lost="checkpoint", cause=line, detected_at=now, done="passed over")
            life.note(f"passed-over/{number}", incident)
