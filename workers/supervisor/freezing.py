"""Ends processes that are frozen: stopped by a signal, they hold their ports and answer nobody.

To wait for a child shows its end, never that it was stopped, and the kernel goes on accepting connections for
it. So its state is looked at. A debugger's hold does not count.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Never

from ratchet.spec import deadlines
from ratchet.store import writers_of
from workers.supervisor.children import LONGEST_LOOK, WATCH_EVERY
from workers.supervisor.processes import look, signal_to

logger = logging.getLogger(__name__)


@asynccontextmanager
async def nobody_frozen_holds(store_url: str) -> AsyncGenerator[None]:
    """Meanwhile, end every process that was stopped while it was writing to an SQLite store: it keeps all
    others from writing, supervisors that are to take its place among them. What it had begun to write is
    undone. (Postgres ends such a session itself: `idle_in_transaction_session_timeout`.)"""

    def tell(pid: int) -> None:
        logger.error("process %d was frozen while it held the store's write lock, and is ended", pid)

    watch = asyncio.create_task(end_frozen(lambda: writers_of(store_url), tell))
    try:
        yield
    finally:
        watch.cancel()


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
