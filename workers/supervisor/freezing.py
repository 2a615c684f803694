"""Ends processes that are frozen: stopped by a signal, they hold their ports and answer nobody.

To wait for a child shows its end, never that it was stopped, and the kernel goes on accepting connections for
it. So its state is looked at. A debugger's hold does not count.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Collection
from typing import Never

from ratchet.spec import deadlines
from workers.supervisor.children import LONGEST_LOOK, WATCH_EVERY
from workers.supervisor.processes import look, signal_to


async def end_frozen(vital: Callable[[], Collection[int]], tell: Callable[[int], None]) -> Never:
    """SIGKILL every process of `vital` that was found stopped for CHILD_SILENT seconds, after `tell`.

    Adds up its own looks, not clock time: a machine that slept must not look like a frozen process.
    """
    frozen: dict[int, float] = {}
    looked = time.monotonic()
    while True:
        await asyncio.sleep(WATCH_EVERY)
        before, looked = looked, time.monotonic()
        step = min(looked - before, LONGEST_LOOK)
        stopped = [pid for pid in vital() if (process := look(pid)) and process.stopped]
        frozen = {pid: frozen.get(pid, 0.0) + step for pid in stopped}
        for pid, seconds in frozen.items():
            if seconds >= deadlines.CHILD_SILENT:
                tell(pid)
                signal_to(pid, signal.SIGKILL)
