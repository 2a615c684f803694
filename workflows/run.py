"""RunWorkflow: one training job as an entity that outlives every process that works for it."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from ratchet.spec import names
from ratchet.spec.control import EventEntry
from ratchet.spec.faults import Fault, RatchetError
from ratchet.spec.state import RunInput, RunResult, RunStatus
from workflows.failures import fault_of
from workflows.life import Life
from workflows.synchronous import synchronous

REMEMBERED_UPDATES = 200


@workflow.defn(name=names.RUN_WORKFLOW)
class RunWorkflow:
    """Its workflow id is the run's id; clients address it without a run id, since it continues as new."""

    @workflow.init
    def __init__(self, input: RunInput) -> None:
        self._life = Life(input.spec, input.state)
        self._state = input.state

    @workflow.run
    async def run(self, input: RunInput) -> RunResult:  # noqa: ARG002 - __init__ took it
        try:
            await self._life.start()
            await synchronous(self._life)
            await self._life.finish()
        except ActivityError as error:
            raise await self._failed(fault_of(error)) from error
        except RatchetError as error:
            raise await self._failed(error.fault()) from error
        await self._life.settled()
        state = self._state
        return RunResult(run=state.run, phase=state.phase, step=state.step, checkpoint=state.last_checkpoint)

    async def _failed(self, fault: Fault) -> ApplicationError:
        await self._life.fail(fault)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return ApplicationError(
            fault.message, fault.model_dump(mode="json"), type=fault.kind.value, non_retryable=True
        )

    @workflow.query(name=names.QUERY_STATUS)
    def status(self) -> RunStatus:
        return self._life.status()

    @workflow.update(name=names.UPDATE_PAUSE)
    async def pause(self) -> RunStatus:
        """Wait at the next step boundary."""
        if self._first_time():
            self._state.paused = True
            await self._applied("paused", "pause at the next step boundary")
        return self._life.status()

    @workflow.update(name=names.UPDATE_RESUME)
    async def resume(self) -> RunStatus:
        """Go on from a pause."""
        if self._first_time():
            self._state.paused = False
            await self._applied("resumed", "go on")
        return self._life.status()

    @workflow.update(name=names.UPDATE_STOP)
    async def stop(self) -> RunStatus:
        """End the run with a checkpoint: an open rollout is given up, an open train step is finished."""
        if self._first_time():
            self._state.stop_requested = True
            await self._applied("stop requested", "end with a checkpoint")
        return self._life.status()

    @pause.validator
    @resume.validator
    @stop.validator
    def _not_ending(self) -> None:
        if self._state.phase.final or self._state.stop_requested:
            raise ApplicationError(
                f"run {self._state.run} is {self._state.phase.value}"
                f"{' and about to stop' if self._state.stop_requested else ''}: it takes no more updates",
                type="Conflict",
                non_retryable=True,
            )

    def _first_time(self) -> bool:
        """Temporal accepts an update's id again after continue-as-new, so we remember them ourselves."""
        update = workflow.current_update_info()
        assert update is not None
        if update.id in self._state.applied_updates:
            return False
        self._state.applied_updates = [*self._state.applied_updates, update.id][-REMEMBERED_UPDATES:]
        return True

    async def _applied(self, topic: str, message: str) -> None:
        update = workflow.current_update_info()
        assert update is not None
        await workflow.wait_condition(lambda: self._life.registered)
        await self._life.record(topic, EventEntry(key=f"update/{update.id}", topic=topic, message=message))
