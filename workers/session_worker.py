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
        )
        async with worker:
            _write_ready(home.session_folder(run, session), boot)
            logger.info("session worker of %s polls %s", run, queue)
            await stop.wait()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


def _write_ready(folder: Path, boot: str) -> None:
    temporary = folder / f"ready.{boot}.tmp"
    temporary.write_text(json.dumps({"pid": os.getpid(), "boot": boot}))
    temporary.replace(folder / "ready.json")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--session", type=int, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s worker %(levelname)s %(message)s")
    asyncio.run(run_session_worker(options.run, options.session, Home()))


if __name__ == "__main__":
    main()
