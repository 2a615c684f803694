"""Many runs at once on one stack: how many steps a second its control plane carries.

Temporal, control worker, API and store are those of `ratchet up`, in their own processes. The engines are
stubs in this process, which carry an operation out by answering it; there is no Ray. More runs are launched
than may have a session, and each of the others waits for its turn.
"""

import asyncio
import tempfile
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.orchestration import null_spec, write_null_model
from benchmarks.report import Report, arguments
from benchmarks.stack import Stack, embedded_stack
from benchmarks.timeline import executions
from ratchet.spec import names
from ratchet.spec.admission import UNLIMITED
from ratchet.spec.faults import RatchetError
from ratchet.spec.ids import CLUSTER_QUEUE
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.stack import StackState
from ratchet.spec.state import RunResult
from workers.temporal import connect
from workers.testing.scripted import Script, ScriptedCluster

RUNS, STEPS, SESSIONS = 300, 50, 24
QUICK_RUNS, QUICK_STEPS, QUICK_SESSIONS = 24, 5, 8
LAUNCHED_AT_ONCE = 8
LOOK_EVERY = 1.0
ENDED = "ExecutionStatus IN ('Completed', 'Failed', 'Terminated', 'TimedOut', 'Canceled')"
LONGEST_STEP = 0.5
"""Seconds of the whole stack that a step may take, before the benchmark is given up."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What the histories of all runs tell."""

    steps: int
    failed_tasks: int
    late_tasks: int
    """Workflow tasks that no worker answered in time, and that were given out again."""
    events: int
    queued: int
    """Runs that had to wait for a session."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, help=f"default {RUNS}, quick {QUICK_RUNS}")
    parser.add_argument("--steps", type=int, help=f"of each run: default {STEPS}, quick {QUICK_STEPS}")
    parser.add_argument("--max-sessions", help=f"default {SESSIONS}, quick {QUICK_SESSIONS}, or {UNLIMITED}")
    options = parser.parse_args()
    count: int = options.runs or (QUICK_RUNS if options.quick else RUNS)
    steps: int = options.steps or (QUICK_STEPS if options.quick else STEPS)
    sessions: str = options.max_sessions or str(QUICK_SESSIONS if options.quick else SESSIONS)
    report = Report(options.json_only)
    words = ["--parts", "temporal,control,api", "--max-sessions", sessions]
    with tempfile.TemporaryDirectory(prefix="ratchet-many-") as folder:
        spec = _spec(write_null_model(Path(folder) / "null"), steps)
        with embedded_stack(Path(folder), words=words) as stack:
            report.progress(f"{count} runs of {steps} steps, {sessions} sessions at a time …")
            launched_s, seconds, carried = asyncio.run(_measure(stack, spec, count, report))
    if (carried.steps, carried.failed_tasks) != (count * steps, 0):
        raise RatchetError(f"{carried.steps} steps of {count * steps} were done; {carried}")
    per_second = carried.steps / seconds
    report.publish(
        f"{count} runs of {steps} steps, {sessions} sessions at a time",
        ["", ""],
        [
            ["steps a second", f"{per_second:.1f}"],
            ["seconds to launch all", f"{launched_s:.1f}"],
            ["seconds from there until all had ended", f"{seconds:.1f}"],
            ["runs that waited for a session", str(carried.queued)],
            ["failed workflow tasks", str(carried.failed_tasks)],
            ["workflow tasks that were late", str(carried.late_tasks)],
            ["history events a step", f"{carried.events / carried.steps:.1f}"],
        ],
        {
            "benchmark": "many_runs",
            "runs": count,
            "steps": carried.steps,
            "max_sessions": sessions,
            "steps_per_s": round(per_second, 2),
            "launch_s": round(launched_s, 2),
            "seconds": round(seconds, 2),
            "queued_runs": carried.queued,
            "failed_workflow_tasks": carried.failed_tasks,
            "late_workflow_tasks": carried.late_tasks,
            "history_events": carried.events,
        },
    )


def _spec(model: Path, steps: int) -> RunSpec:
    spec = null_spec(model, steps)
    return spec.model_copy(update={"grpo": spec.grpo.model_copy(update={"max_num_steps": steps})})


async def _measure(stack: Stack, spec: RunSpec, count: int, report: Report) -> tuple[float, float, Carried]:
    """Launch them, then let sessions be opened, and wait for their end: seconds of the one, and the other."""
    address = StackState.load(stack.home)
    client = await connect(address.temporal_address, namespace=address.namespace)
    cluster = ScriptedCluster(client, Script(), stack.home)
    runs = [f"many-{number}" for number in range(count)]
    began = time.monotonic()
    await asyncio.to_thread(_launch, stack, spec, runs)
    launched = time.monotonic()
    report.progress(f"all are launched after {launched - began:.0f} s")
    async with Worker(client, task_queue=CLUSTER_QUEUE, activities=cluster.all()):
        try:
            within = 60.0 + LONGEST_STEP * count * spec.grpo.max_num_steps
            await asyncio.wait_for(_ended(client, count, report), within)
            seconds = time.monotonic() - launched
        finally:
            await cluster.stop_all()
    return launched - began, seconds, await _carried(client, runs)


def _launch(stack: Stack, spec: RunSpec, runs: list[str]) -> None:
    body = spec.model_dump(mode="json", exclude_unset=True)
    with ThreadPoolExecutor(LAUNCHED_AT_ONCE) as pool:
        deque(pool.map(lambda run: stack.api.launch(body, run), runs), maxlen=0)


async def _ended(client: Client, count: int, report: Report) -> None:
    said = 0
    while (done := (await client.count_workflows(ENDED)).count) < count:
        if done >= said + count // 10:
            report.progress(f"{done} of {count} have ended")
            said = done
        await asyncio.sleep(LOOK_EVERY)


async def _carried(client: Client, runs: list[str]) -> Carried:
    """Raises WorkflowFailureError if a run did not end well."""
    steps = queued = 0
    events: Counter[int] = Counter()
    for run in runs:
        result = await client.get_workflow_handle(run, result_type=RunResult).result()
        steps += result.step
        asked = 0
        for event in chain.from_iterable(await executions(client, run)):
            events[event.event_type] += 1
            asked += event.activity_task_scheduled_event_attributes.activity_type.name == names.ADMIT
        queued += asked > 1
    return Carried(
        steps=steps,
        failed_tasks=events[EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED],
        late_tasks=events[EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT],
        events=events.total(),
        queued=queued,
    )


if __name__ == "__main__":
    main()
