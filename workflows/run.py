"""RunWorkflow: one training job as an entity that outlives every process that works for it."""

import asyncio

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from ratchet.spec import names
from ratchet.spec.control import EventEntry, ExtendRequest, HyperparametersRequest
from ratchet.spec.faults import Conflict, Fault, RatchetError, SpecError
from ratchet.spec.hyperparameters import with_values
from ratchet.spec.state import HyperparameterChange, RunInput, RunResult, RunStatus
from workflows.asynchronous import asynchronous
from workflows.failures import fault_of
from workflows.life import Life
from workflows.recovery import come_alive, lose
from workflows.streaming import streaming
from workflows.synchronous import synchronous
from workflows.watchdog import watch

REMEMBERED_UPDATES = 200


# A state that cannot be read ends the run, with the way out; else its workflow task would be tried for ever.
@workflow.defn(name=names.RUN_WORKFLOW, failure_exception_types=[SpecError])
class RunWorkflow:
    """Its workflow id is the run's id; clients address it without a run id, since it continues as new."""

    @workflow.init
    def __init__(self, input: RunInput) -> None:
        self._life = Life(input.spec, input.state)
        self._state = input.state
        workflow.register_random_seed_callback(self._life.went_back)

    @workflow.run
    async def run(self, input: RunInput) -> RunResult:  # noqa: ARG002 - __init__ took it
        life, state = self._life, self._state
        self._watchdog = asyncio.create_task(watch(life))
        try:
            while not state.phase.final:
                try:
                    await come_alive(life)
                    if life.spec.asynchronous is None:
                        await synchronous(life)
                    elif life.spec.asynchronous.exact:
                        await asynchronous(life, life.spec.asynchronous.max_staleness)
                    else:
                        await streaming(life, life.spec.asynchronous)
                    await life.finish()
                except (ActivityError, RatchetError) as error:
                    lose(life, error)
        except (ActivityError, RatchetError) as error:
            raise await self._failed(fault_of(error)) from error
        await life.settled()
        return RunResult(run=state.run, phase=state.phase, step=state.step, checkpoint=state.last_checkpoint)

    async def _failed(self, fault: Fault) -> ApplicationError:
        way_out = (
            f"{fault.message} (to go on from its newest checkpoint: `ratchet run resume {self._state.run}`)"
        )
        fault = fault.model_copy(update={"message": way_out})
        await self._life.fail(fault)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return ApplicationError(
            fault.message, fault.model_dump(mode="json"), type=fault.kind.value, non_retryable=True
        )

    @workflow.query(name=names.QUERY_STATUS)
    def status(self) -> RunStatus:
        return self._life.status()

    # --- updates: each works at any moment, also during a recovery, and twice in a row

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
        """End the run with a checkpoint: an open rollout is given up, an open train step is finished. During
        a recovery, end it at the checkpoint that it goes back to."""
        if self._first_time():
            self._state.stop_requested = True
            await self._applied("stop requested", "end with a checkpoint")
        return self._life.status()

    @workflow.update(name=names.UPDATE_CHECKPOINT)
    async def checkpoint_now(self) -> RunStatus:
        """Save the policy at the next step boundary, or at once in a pause."""
        if self._first_time():
            self._state.checkpoint_requested = True
            await self._applied("checkpoint requested", "save at the next step boundary")
        return self._life.status()

    @workflow.update(name=names.UPDATE_EXTEND)
    async def extend(self, request: ExtendRequest) -> RunStatus:
        """Train to another last step, a later or an earlier one."""
        if self._first_time():
            self._life.extend(request.max_num_steps)
            await self._applied(
                names.TOPIC_EXTENDED,
                f"train to step {request.max_num_steps}",
                {"max_num_steps": request.max_num_steps},
            )
        return self._life.status()

    @workflow.update(name=names.UPDATE_HYPERPARAMETERS)
    async def set_hyperparameters(self, request: HyperparametersRequest) -> RunStatus:
        """Other values of spec keys, from the next step that was never begun: what is trained again after a
        loss is trained as it was."""
        if self._first_time():
            state = self._state
            change = HyperparameterChange(
                from_step=max(state.begun, state.step) + 1, values=dict(request.values)
            )
            state.hyperparameters = [*state.hyperparameters, change]
            await self._applied(
                names.TOPIC_HYPERPARAMETERS,
                f"from step {change.from_step}: "
                + ", ".join(f"{key} = {value:g}" for key, value in change.values.items()),
                change.model_dump(mode="json"),
            )
        return self._life.status()

    @stop.validator
    def _going_on(self) -> None:
        if self._state.phase.final or self._life.closing:
            raise _refused(Conflict(f"run {self._state.run} has ended: it takes no more updates"))

    @pause.validator
    @resume.validator
    @checkpoint_now.validator
    def _not_ending(self) -> None:
        self._going_on()
        if self._state.stop_requested:
            raise _refused(Conflict(f"run {self._state.run} is about to stop: it takes no more updates"))

    @extend.validator
    def _extendable(self, request: ExtendRequest) -> None:
        self._not_ending()
        step = self._state.step
        if request.max_num_steps <= step:
            message = f"run {self._state.run} has done {step} steps: extend it to more than that"
            raise _refused(Conflict(message))

    @set_hyperparameters.validator
    def _changeable(self, request: HyperparametersRequest) -> None:
        self._not_ending()
        if not request.values:
            raise _refused(SpecError("no hyperparameter is named: say which, and its value"))
        values = {
            key: value for change in self._state.hyperparameters for key, value in change.values.items()
        }
        try:
            with_values(self._life.spec, values | request.values)
        except SpecError as error:
            raise _refused(error) from error

    def _first_time(self) -> bool:
        """Temporal accepts an update's id again after continue-as-new, so we remember them ourselves."""
        update = workflow.current_update_info()
        assert update is not None
        if update.id in self._state.applied_updates:
            return False
        self._state.applied_updates = [*self._state.applied_updates, update.id][-REMEMBERED_UPDATES:]
        return True

    async def _applied(self, topic: str, message: str, data: dict[str, JsonValue] | None = None) -> None:
        """Write it down; before the run is on record, once it is."""
        update = workflow.current_update_info()
        assert update is not None
        await workflow.wait_condition(lambda: self._life.registered or self._state.phase.final)
        event = EventEntry(key=f"update/{update.id}", topic=topic, message=message, data=data or {})
        self._life.records.start(topic, event)


def _refused(error: RatchetError) -> ApplicationError:
    return ApplicationError(str(error), type=error.kind.value, non_retryable=True)
