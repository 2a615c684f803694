"""The guard of a stack that holds a lease: `python -m workers.supervisor.guard SUPERVISOR`, its child.

It ends everything of the stack when the lease's time is over, whatever state the supervisor is in: frozen or
killed, that can end nothing itself, and what it had started would go on beside its successor's.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

from ratchet.spec import deadlines
from ratchet.spec.home import Home
from ratchet.telemetry import logs
from workers.fence import LOOK_EVERY, Fence
from workers.liveness import ALIVE_VARIABLE, touch
from workers.supervisor.children import Plan
from workers.supervisor.processes import end_all, of_stack, signal_to

logger = logging.getLogger(__name__)


def plan(home: Home, environment: dict[str, str]) -> Plan:
    """How this supervisor runs it."""
    alive = home.root / "alive" / "guard"

    async def is_ready(_pid: int, _began: float) -> bool:
        return alive.exists()

    return Plan(
        name="guard",
        argv=[sys.executable, "-m", "workers.supervisor.guard", str(os.getpid())],
        environment=environment,
        log=home.logs / "guard.log",
        is_ready=is_ready,
        ready_within=deadlines.WORKER_READY,
        alive_file=alive,
    )


def guard(home: Home, fence: Fence, supervisor: int) -> None:
    """Wait for the end of the fence's time; then nothing of the stack is left. Raises Unavailable if a
    process survives SIGKILL."""
    alive = os.environ.get(ALIVE_VARIABLE)
    while remaining := fence.remaining():
        if alive:
            touch(Path(alive))
        time.sleep(min(remaining, LOOK_EVERY))
    logger.error("the time of epoch %d is over: ending everything of %s", fence.epoch, home.root)
    if os.getppid() == supervisor:  # else it has ended, and its number may be another's
        signal_to(supervisor, signal.SIGKILL)
    count = asyncio.run(end_all(lambda: of_stack(home), deadlines.PROCESSES_GONE))
    logger.error("ended %d processes", count)


def main() -> None:
    logs.configure("guard")
    fence = Fence.from_environment()
    if fence is None:
        sys.exit("error: there is no lease to guard: the supervisor of `ratchet up --standby` starts this")
    guard(Home(), fence, int(sys.argv[1]))


if __name__ == "__main__":
    main()
