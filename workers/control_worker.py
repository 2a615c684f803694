"""The control worker: runs workflows and light activities. Stateless; any number of them may run.

`python -m workers.control_worker`, started by the supervisor.
"""

import asyncio
import logging
import os
import signal
from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.control import ControlActivities
from ratchet.spec import deadlines, names
from ratchet.spec.home import Home
from ratchet.spec.ids import CONTROL_QUEUE
from ratchet.spec.stack import StackState
from ratchet.store import Store
from workers.liveness import beat_if_asked
from workers.orphans import fail_orphans, here, is_gone
from workers.temporal import connect, register_search_attributes
from workflows.run import RunWorkflow

logger = logging.getLogger(__name__)


def build_control_worker(
    client: Client,
    store: Store,
    home: Home,
    *,
    max_cached_workflows: int = 1000,
    sandboxed: bool = False,
) -> Worker:
    """The worker of the control queue, for the stack and for tests.

    The sandbox finds what is not deterministic in workflow code; that is the tests' business. In production
    it would cost every workflow task a few milliseconds and find nothing new.
    """
    return Worker(
        client,
        task_queue=CONTROL_QUEUE,
        workflows=[RunWorkflow],
        activities=ControlActivities(store, home).all(),
        workflow_runner=_sandbox() if sandboxed else UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=deadlines.STICKY_QUEUE),
        max_cached_workflows=max_cached_workflows,
    )


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
    stack = StackState.load(home)
    store = Store(home.store_url)
    store.migrate()
    client = await connect(stack.temporal_address, namespace=stack.namespace, identity=here(CONTROL_QUEUE))
    await register_search_attributes(client)
    await _fail_orphans(client)
    async with build_control_worker(client, store, home):
        logger.info("control worker %d polls %s", os.getpid(), CONTROL_QUEUE)
        await stop.wait()
    heartbeat.cancel()


async def _fail_orphans(client: Client) -> None:
    """A record that a killed predecessor had begun is tried again at once, not after its deadline."""
    running = f"WorkflowType = '{names.RUN_WORKFLOW}' AND ExecutionStatus = 'Running'"
    async for execution in client.list_workflows(running):
        await fail_orphans(client, execution.id, CONTROL_QUEUE, is_gone, "control worker")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s control %(levelname)s %(message)s")
    asyncio.run(run_control_worker(Home()))


if __name__ == "__main__":
    main()
