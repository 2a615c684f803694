"""What workflow histories say was written into the store: the whole life of a run, execution by execution."""

from dataclasses import dataclass, field
from datetime import UTC
from typing import TypeVar

from pydantic import BaseModel
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from ratchet.spec import names
from ratchet.spec.control import RecordRequest, RegisterRun
from ratchet.spec.state import RunInput
from ratchet.store.rebuild import Told

Model = TypeVar("Model", bound=BaseModel)

_WRITES: dict[str, type[RegisterRun] | type[RecordRequest]] = {
    names.REGISTER_RUN: RegisterRun,
    names.RECORD: RecordRequest,
}


@dataclass(slots=True)
class History:
    """Every execution of a run that Temporal still knows, oldest first."""

    executions: int = 0
    open: bool = False
    """One of them still runs."""
    first: RunInput | None = None
    """What the oldest of them was started with."""
    began_at: float = 0.0
    """When, seconds since the epoch."""
    began_as: str = ""
    """Its execution id."""
    from_the_start: bool = True
    """The oldest one that is known continues none that was forgotten."""
    told: list[Told] = field(default_factory=list)
    """What was written into the store, in order."""


async def read_history(client: Client, run: str) -> History:
    """Read it all. Raises RPCError; unbounded in time, since histories have any length."""
    executions = [found async for found in client.list_workflows(f'WorkflowId = "{run}"')]
    executions.sort(key=lambda execution: execution.start_time)
    history = History(executions=len(executions))
    for execution in executions:
        history.open |= execution.status is WorkflowExecutionStatus.RUNNING
        await _read(client, execution, history)
    return history


async def _read(client: Client, execution: WorkflowExecution, history: History) -> None:
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    open_writes: dict[int, Told] = {}
    async for event in handle.fetch_history_events():
        at = event.event_time.ToDatetime(UTC).timestamp()  # to the microsecond, as activities see it
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED if history.first is None:
                started = event.workflow_execution_started_event_attributes
                history.first = await _decode(client, started.input, RunInput)
                history.began_at, history.began_as = at, execution.run_id
                history.from_the_start = not started.continued_execution_run_id
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                scheduled = event.activity_task_scheduled_event_attributes
                if model := _WRITES.get(scheduled.activity_type.name):
                    request = await _decode(client, scheduled.input, model)
                    open_writes[event.event_id] = Told(request, at)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                if told := open_writes.pop(completed.scheduled_event_id, None):
                    history.told.append(told)
            case _:
                pass


async def _decode(client: Client, payloads: Payloads, model: type[Model]) -> Model:
    (value,) = await client.data_converter.decode(payloads.payloads, [model])
    return value
