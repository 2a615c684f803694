"""The session worker: pulls a session's work from its task queue, and never imports Ray.

`python -m workers.session_worker --run RUN --session N`, started by the supervisor.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import uuid
from datetime import timedelta
from pathlib import Path

from temporalio.worker import Worker

from activities.session import SessionActivities
from ratchet.spec import deadlines
from ratchet.spec.home import Home
from ratchet.spec.ids import session_queue
from ratchet.spec.stack import StackState
from workers import telemetry
from workers.fence import Fence
from workers.fenced_tasks import FencedTasks
from workers.host_process import HostProcess
from workers.liveness import beat_if_asked
from workers.orphans import fail_orphans
from workers.temporal import connect

logger = logging.getLogger(__name__)


async def run_session_worker(run: str, session: int, home: Home) -> None:
    """Serve the session until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    boot = uuid.uuid4().hex
    queue = session_queue(run, session)
    identity = f"{queue}@{boot}"
    stack = StackState.load(home)
    host = HostProcess(run, session)
    background = [asyncio.create_task(host.keep_alive()), asyncio.create_task(beat_if_asked())]
    fence = Fence.from_environment()
    if fence:
        background.append(asyncio.create_task(_end_with(fence)))
    try:
        client = await connect(stack.temporal_address, namespace=stack.namespace, identity=identity)
        await fail_orphans(client, run, queue, lambda worker: worker != identity)
        worker = Worker(
            client,
            task_queue=queue,
            activities=SessionActivities(host).all(),
            identity=identity,
            max_heartbeat_throttle_interval=timedelta(seconds=deadlines.HEARTBEAT_THROTTLE),
            default_heartbeat_throttle_interval=timedelta(seconds=deadlines.HEARTBEAT_THROTTLE),
            interceptors=[FencedTasks(fence)] if fence else [],
        )
        async with worker:
            _write_ready(home.session_folder(run, session), boot)
            logger.info("session worker of %s polls %s", run, queue)
            await stop.wait()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


async def _end_with(fence: Fence) -> None:
    """End at once when the stack may not act any more, whoever else sees to it, and the host with it."""
    await fence.over()
    logger.error("epoch %d of this stack is over", fence.epoch)
    os.kill(os.getpid(), signal.SIGKILL)


def _write_ready(folder: Path, boot: str) -> None:
    temporary = folder / f"ready.{boot}.tmp"
    temporary.write_text(json.dumps({"pid": os.getpid(), "boot": boot}))
    temporary.replace(folder / "ready.json")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--session", type=int, required=True)
    options = parser.parse_args()
    home = Home()
    telemetry.begin("session", home, run=options.run, incarnation=options.session)
    asyncio.run(run_session_worker(options.run, options.session, home))


if __name__ == "__main__":
    main()
