"""`up --standby`: a supervisor that waits for its turn, is active for a term, and then waits again."""

import asyncio
import logging
import os
import time
from collections.abc import Callable

from ratchet.spec import deadlines, names
from ratchet.spec.home import Home
from workers.supervisor.files import write_atomically
from workers.supervisor.leadership import Leadership
from workers.supervisor.state import SupervisorState
from workers.supervisor.stop import sweep
from workers.supervisor.supervisor import Options, Supervisor

logger = logging.getLogger(__name__)


async def stand_by(
    home: Home, options: Options, ended: asyncio.Event, started: Callable[[SupervisorState], None]
) -> None:
    """Run the stack whenever this is the active supervisor, until `ended`. `started` is called once: when the
    stack is up, or when another one is active. Raises what the start of the stack raises, or Unavailable."""
    assert options.standby
    assert options.temporal
    await sweep(home)
    supervisor: Supervisor | None = None
    since, told = time.time(), False

    def tell(state: SupervisorState) -> None:
        nonlocal told
        if not told:
            told = True
            started(state)

    def changed() -> None:
        if supervisor:
            return supervisor.publish()
        state = _waiting(options, leadership, since)
        try:
            write_atomically(home.state_file, state.model_dump_json(indent=1))
        except OSError as error:
            logger.error("%s cannot be written, and is old now: %s", home.state_file, error)
        if state.standing_by_for:
            tell(state)

    leadership = Leadership(home, options.standby, changed)
    await leadership.prepare()
    end = asyncio.create_task(ended.wait())
    try:
        while await _won(leadership, end):
            supervisor = Supervisor(home, options, leadership)
            await _term(supervisor, leadership, end, tell)
            supervisor = None
    finally:
        end.cancel()
        await leadership.resign()
        home.state_file.unlink(missing_ok=True)


async def _won(leadership: Leadership, end: asyncio.Task[bool]) -> bool:
    """Wait for this to be the active supervisor; false if it is to end first."""
    if end.done():
        return False
    win = asyncio.create_task(leadership.win())
    await asyncio.wait([win, end], return_when=asyncio.FIRST_COMPLETED)
    if end.done():
        win.cancel()
        await asyncio.wait([win])
        return False
    win.result()
    return True


async def _term(
    supervisor: Supervisor,
    leadership: Leadership,
    end: asyncio.Task[bool],
    started: Callable[[SupervisorState], None],
) -> None:
    """Run the stack until it is to end, or the lease is lost; then nothing of it is left."""
    lost = asyncio.create_task(leadership.keep())
    start = asyncio.create_task(supervisor.start())
    try:
        await asyncio.wait([start, end, lost], return_when=asyncio.FIRST_COMPLETED)
        if start.done() and not lost.done():
            started(start.result())
            await asyncio.wait([end, lost], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if lost.done():
            logger.error("not the active supervisor any more, and ending everything: %s", lost.result())
        start.cancel()
        await asyncio.wait([start])
        await supervisor.stop(0.0 if lost.done() else deadlines.STOP_GRACE)
        lost.cancel()
        await asyncio.wait([lost])


def _waiting(options: Options, leadership: Leadership, since: float) -> SupervisorState:
    lease = leadership.view()
    return SupervisorState(
        supervisor_pid=os.getpid(),
        temporal_address=options.temporal or "",
        namespace=names.NAMESPACE,
        standing_by_for=lease.holder if lease.role == "standby" else None,
        started_at=since,
        ready=True,
        lease=lease,
    )
