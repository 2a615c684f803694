"""Admission: a run has a session only while it is admitted; until then it is queued, and says behind whom."""

from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityHandle

from ratchet.spec import deadlines, names
from ratchet.spec.admission import AdmitAnswer, AdmitRequest, Place, ReleaseRequest
from ratchet.spec.control import EventEntry
from ratchet.spec.ids import CONTROL_QUEUE
from ratchet.spec.state import RunPhase, Slot
from workflows.failures import fault_of
from workflows.once_more import once_more

if TYPE_CHECKING:
    from workflows.life import Life


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


async def admitted(life: "Life") -> bool:
    """The run may have a session: at once, or after it has waited for its turn. False: it is to stop.

    Asked again, a run that was admitted stays so. One that is paused while it waits gives its place up, and
    queues anew once it is resumed.
    """
    state, before = life.state, life.state.phase
    if state.slot is Slot.EXEMPT:
        return True
    since = workflow.info().workflow_start_time.timestamp()
    while not state.stop_requested:
        request = _request(life, since)
        answer = await _ask(request)
        if answer.place is None or await _its_turn(life, request, answer.place):
            state.slot = Slot.HELD
            break
        await release(life)
        await _paused(life)
        since = workflow.time()
    if state.phase is not before:
        life.progressed()
        life.enter(before, state.cause)
    return not state.stop_requested


async def admitted_already(life: "Life") -> None:
    """The store has lost sight of the run, which has a session: it is counted again."""
    if life.state.slot is Slot.HELD:
        await _ask(_request(life, workflow.time()).model_copy(update={"holds": True}))


async def release(life: "Life") -> None:
    """Give the place or the turn back. If that fails, it is taken back once the workflow has ended."""
    state = life.state
    if state.slot is Slot.EXEMPT:
        return
    state.slot = Slot.NONE
    try:
        await workflow.execute_activity(
            names.RELEASE,
            ReleaseRequest(run=state.run, execution=workflow.info().first_execution_run_id),
            task_queue=CONTROL_QUEUE,
            start_to_close_timeout=_s(deadlines.RECORD),
            schedule_to_close_timeout=_s(deadlines.RELEASE),
            summary="give the session's place back",
        )
    except ActivityError as error:
        workflow.logger.warning("its place among the sessions is kept for now: %s", fault_of(error).message)


def _request(life: "Life", since: float) -> AdmitRequest:
    return AdmitRequest(
        run=life.state.run,
        execution=workflow.info().first_execution_run_id,
        priority=life.spec.runtime.priority,
        since=since,
    )


async def _ask(request: AdmitRequest) -> AdmitAnswer:
    return await once_more(
        lambda: workflow.start_activity(
            names.ADMIT,
            request,
            result_type=AdmitAnswer,
            task_queue=CONTROL_QUEUE,
            start_to_close_timeout=_s(deadlines.RECORD),
            schedule_to_close_timeout=_s(deadlines.RECORD_SCHEDULE_TO_CLOSE),
            summary="ask for a session",
        )
    )


def _wait(request: AdmitRequest) -> ActivityHandle[AdmitAnswer]:
    """Over all attempts it has no deadline: how long it takes is up to those ahead, and they are named."""
    return workflow.start_activity(
        names.ADMIT,
        request.model_copy(update={"waits": True}),
        result_type=AdmitAnswer,
        task_queue=CONTROL_QUEUE,
        start_to_close_timeout=_s(deadlines.ADMISSION_WAIT),
        summary="wait for a session",
    )


async def _its_turn(life: "Life", request: AdmitRequest, place: Place) -> bool:
    """Wait for it. False: the run does not wait any more, since it is to pause or to stop, or to ask anew."""
    state, queued_at = life.state, workflow.time()
    life.enter(RunPhase.QUEUED)
    _tell(life, names.TOPIC_QUEUED, queued_at, str(place))
    turn = _wait(request)
    turn.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await workflow.wait_condition(lambda: turn.done() or state.paused or state.stop_requested)
    finally:
        if not turn.done():
            turn.cancel()
    if not turn.done() or (await turn).forgotten:
        return False
    waited = workflow.time() - queued_at
    _tell(life, names.TOPIC_ADMITTED, queued_at, f"has a session after waiting for {waited:.0f} s")
    return True


def _tell(life: "Life", topic: str, queued_at: float, message: str) -> None:
    life.records.start(topic, EventEntry(key=f"{topic}/{queued_at}", topic=topic, message=message))


async def _paused(life: "Life") -> None:
    """Wait for the end of a pause, if there is one."""
    state = life.state
    if state.paused and not state.stop_requested:
        life.enter(RunPhase.PAUSED)
        await workflow.wait_condition(lambda: not state.paused or state.stop_requested)
