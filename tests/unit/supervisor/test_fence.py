"""The end of a stack's time, as its processes see it, and the guard that ends those who do not."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from ratchet.spec.home import HOME_VARIABLE, Home
from workers.fence import Fence, Fenced, clock
from workers.fenced_tasks import FencedTasks
from workers.liveness import ALIVE_VARIABLE
from workers.supervisor import guard
from workers.supervisor.environment import stack_environment
from workers.supervisor.reaper import Reaper

SUPERVISOR = """
import os, subprocess, sys, time
guard = [sys.executable, "-m", "workers.supervisor.guard", str(os.getpid())]
subprocess.Popen(guard, stderr=open(sys.argv[1], "w"))
time.sleep(120)
"""


@pytest.fixture
def fence(tmp_path: Path) -> Fence:
    return Fence(tmp_path / "fence", 3)


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_a_stack_may_act_in_its_own_epoch_until_its_time_is_over(
    fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fence.remaining() == 0.0, "nobody has allowed anything"
    fence.extend(clock() + 100.0)
    fence.check()
    assert 90.0 < fence.remaining() <= 100.0
    for name, value in fence.environment().items():
        monkeypatch.setenv(name, value)
    inherited = Fence.from_environment()
    assert inherited
    assert inherited.remaining() > 90.0

    Fence(fence.path, 4).extend(clock() + 100.0)
    assert inherited.remaining() == 0.0, "its epoch is over"
    fence.extend(clock() - 1.0)
    with pytest.raises(Fenced, match="epoch 3 of this stack is over"):
        fence.check()


def test_a_damaged_fence_lets_nobody_act(fence: Fence) -> None:
    fence.path.write_bytes(b"\3")
    assert fence.remaining() == 0.0


def test_nothing_is_started_after_the_end(fence: Fence) -> None:
    with pytest.raises(Fenced), open(os.devnull, "wb") as output:
        Reaper(fence.check).start(["/bin/true"], environment={}, output=output)


async def test_a_task_that_was_handed_out_in_time_and_arrives_late_is_not_begun(fence: Fence) -> None:
    begun: list[str] = []

    class Next(ActivityInboundInterceptor):
        def __init__(self) -> None:
            pass

        async def execute_activity(self, input: ExecuteActivityInput) -> None:
            begun.append(activity.info().activity_id)

    checked = FencedTasks(fence).intercept_activity(Next())
    task = ExecuteActivityInput(fn=print, args=[], executor=None, headers={})
    fence.extend(clock() + 100.0)
    await ActivityEnvironment().run(checked.execute_activity, task)
    assert len(begun) == 1
    fence.extend(clock())
    with pytest.raises(activity._CompleteAsyncError):  # nothing is answered
        await ActivityEnvironment().run(checked.execute_activity, task)
    assert len(begun) == 1


@pytest.mark.parametrize("fate", [signal.SIGSTOP, signal.SIGKILL, None], ids=["frozen", "killed", "living"])
def test_the_guard_ends_the_stack_and_nothing_else_when_the_time_is_over(
    tmp_path: Path, fate: signal.Signals | None
) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    fence = Fence(home.root / "fence", 1)
    fence.extend(clock() + 100.0)
    alive = tmp_path / "alive"
    environment = stack_environment(home) | fence.environment() | {ALIVE_VARIABLE: str(alive)}
    log = tmp_path / "guard.log"
    stranger = subprocess.Popen(["sleep", "60"], env=os.environ | {HOME_VARIABLE: str(home.root)})
    worker = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(log)], env=environment)
    try:
        until(alive.exists)
        if fate:
            os.kill(supervisor.pid, fate)
        assert worker.poll() is None
        fence.extend(clock() + 1.0)
        assert worker.wait(30) == -signal.SIGKILL
        assert supervisor.wait(30) == -signal.SIGKILL
        until(lambda: "processes" in log.read_text())
        assert stranger.poll() is None
    finally:
        for process in (stranger, worker, supervisor):
            process.kill()
            process.wait()


async def test_who_waits_for_the_end_hears_of_it(fence: Fence) -> None:
    fence.extend(clock() + 0.2)
    async with asyncio.timeout(10):
        await fence.over()
    assert guard.plan(Home(fence.path.parent), {}).argv[-1] == str(os.getpid())
