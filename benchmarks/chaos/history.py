"""What the workflow's history says of a run: operations and their receipts, records, what people did."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from benchmarks.timeline import executions
from ratchet.spec import names
from ratchet.spec.control import RecordRequest, RegisterRun
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.receipts import AnyReceipt, parse_receipt
from ratchet.spec.stack import StackState
from ratchet.store.rebuild import Told
from workers.temporal import connect

_WRITES: dict[str, type[RegisterRun] | type[RecordRequest]] = {
    names.REGISTER_RUN: RegisterRun,
    names.RECORD: RecordRequest,
}
_KINDS = {kind.value: kind for kind in OpKind}
_ACTIONS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "an update",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "a signal",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: "a cancellation",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "a termination",
}
"""What an operator leaves in a history."""


@dataclass(frozen=True, slots=True)
class Done:
    """An operation that was carried out, as the workflow heard of it."""

    op: OpId
    scheduled_at: float
    """Seconds since the epoch, like every time here."""
    done_at: float
    receipt: AnyReceipt


@dataclass(slots=True)
class RunHistory:
    """All executions of a run, in order."""

    operations: list[Done] = field(default_factory=list)
    """In the order in which they were done."""
    told: list[Told] = field(default_factory=list)
    """What the store was told, in the order in which it was asked to write it: a worker that writes, and dies
    before it says so, is heard of only when another has written the same again."""
    closed_at: float | None = None
    """When the session had been closed."""
    actions: list[str] = field(default_factory=list)
    """What somebody did to the run after its launch."""
    executions: int = 0


async def read_history(home: Home, run: str) -> RunHistory:
    """Read it all. Raises RPCError, or Unavailable without a server."""
    stack = StackState.load(home)
    client = await connect(stack.temporal_address, namespace=stack.namespace)
    history = RunHistory()
    for events in reversed(await executions(client, run)):
        history.executions += 1
        await _add(client, events, history)
    return history


async def _add(client: Client, events: Iterable[HistoryEvent], history: RunHistory) -> None:
    scheduled: dict[int, HistoryEvent] = {}
    told: dict[int, Told] = {}
    for event in events:
        if event.event_type in _ACTIONS:
            history.actions.append(f"{_ACTIONS[event.event_type]} (event {event.event_id})")
        elif event.HasField("activity_task_scheduled_event_attributes"):
            scheduled[event.event_id] = event
        elif event.HasField("activity_task_completed_event_attributes"):
            completed = event.activity_task_completed_event_attributes
            order = scheduled[completed.scheduled_event_id]
            details = order.activity_task_scheduled_event_attributes
            name = details.activity_type.name
            if name in _KINDS:
                receipt = parse_receipt(await _decoded(client, completed.result))
                done = Done(OpId.parse(receipt.op), seconds(order), seconds(event), receipt)
                history.operations.append(done)
            elif name in _WRITES:
                request = await _decoded(client, details.input, _WRITES[name])
                told[order.event_id] = Told(request, seconds(order))
            elif name == names.CLOSE_SESSION:
                history.closed_at = seconds(event)
    history.told += [told[event_id] for event_id in sorted(told)]


async def _decoded(client: Client, payloads: Payloads, model: Any = None) -> Any:
    (value,) = await client.data_converter.decode(payloads.payloads, [model] if model else None)
    return value


def seconds(event: HistoryEvent) -> float:
    """When it was written, since the epoch."""
    return event.event_time.ToDatetime(UTC).timestamp()  # microseconds, like what workers are told
