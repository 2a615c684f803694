"""Sessions of a run on a stack: joined, brought back, and closed so that nothing is left."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from ratchet.refit.segments import new_segment, segment_prefix
from ratchet.spec import names
from ratchet.spec.control import ProbeAnswer, SessionInfo
from ratchet.spec.home import Home
from ratchet.spec.ids import actor_name
from tests.integration.conftest import SESSION, Driver, Stack
from workers.supervisor.processes import look, running
from workers.temporal import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WORKER = "session-r-1-1"


@pytest.fixture(scope="module", autouse=True)
def _run(stack: Stack) -> None:
    """Sessions of a run that has ended would be closed."""

    async def start() -> None:
        client = await connect(stack.state.temporal_address)
        await client.start_workflow("Nobody", id=SESSION.run, task_queue="nobody-polls")

    asyncio.run(start())


class Segment:
    """Shared memory of a trainer that was killed long ago."""

    def __init__(self, home: Home) -> None:
        self._path = new_segment(segment_prefix(home, actor_name("trainer", "r-1", 1)))
        self._path.write_bytes(b"weights")

    def is_there(self) -> bool:
        return self._path.exists()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


@pytest.fixture
def segment(stack: Stack) -> Iterator[Segment]:
    segment = Segment(stack.home)
    yield segment
    segment.remove()


async def test_an_open_session_is_joined_and_its_worker_comes_back(stack: Stack) -> None:
    opened: SessionInfo = await stack.order(names.OPEN_SESSION, SESSION, SessionInfo)
    assert opened.queue == "ratchet-session-r-1-1"
    first = stack.pid_of(WORKER)
    await stack.order(names.OPEN_SESSION, SESSION, SessionInfo)
    assert stack.pid_of(WORKER) == first, "opening an open session joins it"

    os.kill(first, signal.SIGKILL)
    took = await asyncio.to_thread(
        stack.until, lambda: stack.part(WORKER).starts == 2, "another session worker"
    )
    assert took < 1.0
    await stack.order(names.RESTART_WORKER, SESSION, SessionInfo)
    assert stack.pid_of(WORKER) != first
    answer: ProbeAnswer = await stack.order(names.PROBE_SESSION, SESSION, ProbeAnswer)
    assert answer.head
    assert answer.worker


def test_a_lost_head_is_replaced_at_the_same_address_and_its_sessions_come_back(
    stack: Stack, driver: Driver
) -> None:
    assert driver.count_up("before-head") == 1
    driver.leave()
    before, address = stack.part(WORKER), stack.ray_address
    # Its death ends the raylet, which cannot be executed again: it would be a new node.
    agent = next(process.pid for process in running() if process.parent == stack.pid_of("ray"))
    stack.end_and_wait("ray", victim=agent)
    stack.until(
        lambda: stack.part(WORKER).starts > before.starts, "another session worker after another head"
    )
    assert look(before.pid or 0) is None, "the old worker went with the old head"
    assert (stack.part(WORKER).last_end or "").startswith("was killed with what it needs")
    assert stack.ray_address == address
    assert driver.count_up("before-head") == 1


async def test_a_closed_session_leaves_no_worker_actor_segment_or_folder(
    stack: Stack, driver: Driver, segment: Segment
) -> None:
    await stack.order(names.OPEN_SESSION, SESSION, SessionInfo)
    worker = stack.pid_of(WORKER)
    mine, others = actor_name("trainer", "r-1", 1, rank=7), actor_name("trainer", "r-1", 11, rank=7)
    assert await asyncio.to_thread(driver.count_up, mine) == 1
    assert await asyncio.to_thread(driver.count_up, others) == 1
    await stack.order(names.CLOSE_SESSION, SESSION)
    assert look(worker) is None
    assert not segment.is_there()
    assert not stack.home.session_folder("r-1", 1).exists()
    assert await asyncio.to_thread(driver.count_up, mine) == 1, "its actors are gone"
    assert await asyncio.to_thread(driver.count_up, others) == 2, "those of other sessions are not"


async def test_a_session_that_is_closed_while_the_head_is_away_leaves_nothing(
    stack: Stack, driver: Driver, segment: Segment
) -> None:
    await stack.order(names.OPEN_SESSION, SESSION, SessionInfo)
    worker = stack.pid_of(WORKER)
    driver.leave()
    os.kill(stack.pid_of("ray"), signal.SIGKILL)
    await stack.order(names.CLOSE_SESSION, SESSION)
    assert look(worker) is None
    assert not segment.is_there()
    assert not stack.home.session_folder("r-1", 1).exists()
    assert WORKER not in [part.name for part in stack.state.parts]


async def test_a_later_session_of_the_run_ends_earlier_ones_even_those_nobody_here_opened(
    stack: Stack, driver: Driver, segment: Segment
) -> None:
    earlier, of_another_run = actor_name("generator", "r-1", 1), actor_name("generator", "r-11", 1)
    assert await asyncio.to_thread(driver.count_up, earlier) == 1
    assert await asyncio.to_thread(driver.count_up, of_another_run) == 1
    await stack.order(names.OPEN_SESSION, SESSION.model_copy(update={"session": 2}), SessionInfo)
    assert not segment.is_there()
    assert await asyncio.to_thread(driver.count_up, earlier) == 1, "it was ended"
    assert await asyncio.to_thread(driver.count_up, of_another_run) == 2


async def test_a_session_of_a_run_that_was_terminated_is_closed(stack: Stack) -> None:
    worker = stack.pid_of("session-r-1-2")
    client = await connect(stack.state.temporal_address)
    await client.get_workflow_handle("r-1").terminate()
    folder = stack.home.session_folder("r-1", 2)
    await asyncio.to_thread(stack.until, lambda: not folder.exists(), "the session closed")
    assert look(worker) is None
