"""The control worker: runs workflows and light activities. Stateless; any number of them may run.

`python -m workers.control_worker`, started by the supervisor.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.admission import AdmissionActivities
from activities.control import ControlActivities
from ratchet.spec import deadlines, names
from ratchet.spec.admission import Limit
from ratchet.spec.home import Home
from ratchet.spec.ids import CONTROL_QUEUE
from ratchet.spec.stack import current_stack
from ratchet.store import Store
from ratchet.store.admission import Admissions
from workers import telemetry
from workers.liveness import beat_if_asked
from workers.orphans import fail_orphans, here, is_gone
from workers.supervisor.temporal_server import ensure_namespace
from workers.temporal import connect, register_search_attributes
from workflows.run import RunWorkflow

logger = logging.getLogger(__name__)


@asynccontextmanager
async def control_worker(
    client: Client,
    store: Store,
    home: Home,
    *,
    limit: Limit | None = None,
    max_cached_workflows: int = 1000,
    sandboxed: bool = False,
) -> AsyncIterator[None]:
    """Serves the control queue as long as the context lasts, in the stack and in tests. `limit`: of sessions;
    else what this installation is set to.

    The sandbox finds what is not deterministic in workflow code; that is the tests' business. In production
    it would cost every workflow task a few milliseconds and find nothing new.
    """
    admission = AdmissionActivities(Admissions(store), limit or Limit.of(home))
    worker = Worker(
        client,
        task_queue=CONTROL_QUEUE,
        workflows=[RunWorkflow],
        activities=[*ControlActivities(store, home).all(), *admission.all()],
        workflow_runner=_sandbox() if sandboxed else UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=deadlines.STICKY_QUEUE),
        max_cached_workflows=max_cached_workflows,
    )
    async with worker:
        usher = asyncio.create_task(admission.usher(client))
        try:
            yield
        finally:
            usher.cancel()
            await asyncio.wait([usher])


def _sandbox() -> SandboxedWorkflowRunner:
    # Specs and receipts are plain data; reloading them in every sandbox costs time and finds nothing.
    passed_through = ("ratchet", "pydantic", "pydantic_core")
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*passed_through)
    return SandboxedWorkflowRunner(restrictions=restrictions)


async def run_control_worker(home: Home) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    heartbeat = asyncio.create_task(beat_if_asked())
    stack = current_stack(home)
    store = Store(home.store_url)
    store.migrate()
    client = await connect(stack.temporal_address, namespace=stack.namespace, identity=here(CONTROL_QUEUE))
    await ensure_namespace(client, own_server=False)
    await register_search_attributes(client)
    await _fail_orphans(client)
    async with control_worker(client, store, home):
        logger.info("control worker %d polls %s", os.getpid(), CONTROL_QUEUE)
        await stop.wait()
    heartbeat.cancel()


async def _fail_orphans(client: Client) -> None:
    """A record that a killed predecessor had begun is tried again at once, not after its deadline."""
    running = f"WorkflowType = '{names.RUN_WORKFLOW}' AND ExecutionStatus = 'Running'"
    async for execution in client.list_workflows(running):
        await fail_orphans(client, execution.id, CONTROL_QUEUE, is_gone, "control worker")


def main() -> None:
    home = Home()
    telemetry.begin("control-worker", home)
    asyncio.run(run_control_worker(home))


if __name__ == "__main__":
    main()
