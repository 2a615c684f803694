"""Where a run's time went between Temporal, its workers and its actors, read from its history."""

from collections import defaultdict
from typing import NamedTuple

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from benchmarks.report import percentile
from ratchet.spec.home import Home
from ratchet.spec.ids import OpKind
from ratchet.spec.stack import StackState
from workers.temporal import connect

STEP = (OpKind.ROLLOUT_BATCH, OpKind.TRAIN_STEP, OpKind.REFIT)


class Part(NamedTuple):
    """Milliseconds of something that happens at every step."""

    name: str
    p50_ms: float
    p95_ms: float


async def step_parts(home: Home, run: str) -> tuple[list[Part], int]:
    """For each operation of a step: from scheduled to picked up, and from there to done. Then workflow tasks:
    from scheduled to answered. And the number of events in the longest of the run's histories."""
    stack = StackState.load(home)
    client = await connect(stack.temporal_address, namespace=stack.namespace)
    times: defaultdict[str, list[float]] = defaultdict(list)
    longest = 0
    for history in await executions(client, run):
        longest = max(longest, len(history))
        by_id = {event.event_id: event for event in history}
        for event in history:
            if event.HasField("activity_task_completed_event_attributes"):
                done = event.activity_task_completed_event_attributes
                scheduled, started = by_id[done.scheduled_event_id], by_id[done.started_event_id]
                name = scheduled.activity_task_scheduled_event_attributes.activity_type.name
                times[f"{name} dispatch"].append(_ms(scheduled, started))
                times[f"{name} work"].append(_ms(started, event))
            elif event.HasField("workflow_task_completed_event_attributes"):
                answered = event.workflow_task_completed_event_attributes
                times["workflow task"].append(_ms(by_id[answered.scheduled_event_id], event))
    wanted = [f"{kind.value} {half}" for kind in STEP for half in ("dispatch", "work")] + ["workflow task"]
    parts = [Part(name, percentile(times[name], 0.5), percentile(times[name], 0.95)) for name in wanted]
    return parts, longest


async def executions(client: Client, run: str) -> list[list[HistoryEvent]]:
    """The histories of a run, newest first: it continues as new every so often."""
    histories: list[list[HistoryEvent]] = []
    execution: str | None = None
    while True:
        history = await client.get_workflow_handle(run, run_id=execution).fetch_history()
        histories.append(list(history.events))
        execution = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not execution:
            return histories


def _ms(since: HistoryEvent, until: HistoryEvent) -> float:
    return (until.event_time.ToNanoseconds() - since.event_time.ToNanoseconds()) / 1e6
