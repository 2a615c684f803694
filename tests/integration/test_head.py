"""A Ray head whose processes are killed or frozen: what is replaced, what survives, and what is told."""

import asyncio
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ratchet.refit.segments import new_segment, segment_prefix
from ratchet.spec import deadlines
from ratchet.spec.home import Home
from workers.supervisor import freezing
from workers.supervisor.children import Phase
from workers.supervisor.environment import stack_environment
from workers.supervisor.ports import Ports
from workers.supervisor.processes import look, running
from workers.supervisor.ray_head import RayHead
from workers.supervisor.reaper import Reaper

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

COUNT = """
import sys, ray
ray.init(address=sys.argv[1], namespace="ratchet", log_to_driver=False, configure_logging=False)

@ray.remote(num_cpus=0)
class Counter:
    def __init__(self): self.value = 0
    def up(self): self.value += 1; return self.value

actor = Counter.options(name="counter", lifetime="detached", get_if_exists=True).remote()
print(ray.get(actor.up.remote(), timeout=20))
"""


class Head:
    """A head inside the test, and what it told."""

    def __init__(self, home: Home, reaper: Reaper) -> None:
        self.home, self._reaper = home, reaper
        self.told: list[str] = []
        self.ray = RayHead(
            home,
            Ports.choose(home, {}, {"ray"}).ray,
            reaper,
            changed=lambda: None,
            lost=lambda: self.told.append("lost"),
            back=lambda: self.told.append("back"),
        )

    async def count_up(self) -> int:
        """Find or make a detached counter, in a driver of its own."""
        with tempfile.TemporaryFile() as output:
            argv = [sys.executable, "-c", COUNT, self.ray.address]
            environment = stack_environment(self.home)
            code = await self._reaper.run(argv, environment=environment, output=output, within=40)
            output.seek(0)
            said = output.read().decode()
        assert code == 0, said
        return int(said.split()[-1])

    async def another(self, starts: int) -> None:
        async with asyncio.timeout(30):
            while not (self.ray.starts == starts and self.ray.phase is Phase.READY):
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(loop_scope="session")
async def head(tmp_path: Path, reaper: Reaper) -> AsyncIterator[Head]:
    home = Home(tmp_path / "home")
    home.logs.mkdir(parents=True)
    head = Head(home, reaper)
    try:
        await head.ray.start()
        yield head
    finally:
        await head.ray.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "CHILD_SILENT", 1.0)
    monkeypatch.setattr(freezing, "WATCH_EVERY", 0.2)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_gcs_alone_is_executed_again_and_no_actor_is_lost(
    head: Head, how: signal.Signals, impatient: None
) -> None:
    assert await head.count_up() == 1
    raylet, gcs = head.ray.pid, head.ray.gcs_pid
    assert gcs
    os.kill(gcs, how)
    async with asyncio.timeout(20):
        while head.ray.gcs_last_end is None:
            await asyncio.sleep(0.02)
    assert await head.count_up() == 2
    assert head.ray.pid == raylet
    assert look(gcs) is None
    assert head.told == []
    what = "ended with -9" if how is signal.SIGKILL else "was frozen"
    assert head.ray.gcs_last_end.startswith(f"{what} at 20")
    assert ", executed again in " in head.ray.gcs_last_end


async def test_a_gcs_that_cannot_be_executed_again_costs_the_head(head: Head) -> None:
    raylet, gcs, recording = head.ray.pid, head.ray.gcs_pid, head.ray._recording
    assert raylet
    assert gcs
    assert recording
    # What a refused fork also is to whoever starts a process: an OSError.
    head.ray._recording = dataclasses.replace(recording, folder=head.home.root / "gone")
    os.kill(gcs, signal.SIGKILL)
    await head.another(2)
    assert head.told == ["lost", "back"]
    assert "cannot be executed again: " in (head.ray.last_end or "")
    assert not any(look(pid) for pid in (raylet, gcs))


async def test_the_rest_is_replaced_as_a_whole_dead_or_frozen(head: Head, impatient: None) -> None:
    raylet = head.ray.pid
    assert raylet
    agents = [process.pid for process in running() if process.parent == raylet]
    assert len(agents) == 2
    segment = new_segment(segment_prefix(head.home, "trainer-r-1-1-0"))
    segment.write_bytes(b"weights of an actor that dies")

    os.kill(agents[0], signal.SIGSTOP)
    await head.another(2)
    assert head.told == ["lost", "back"]
    assert not any(look(pid) for pid in (raylet, *agents))
    assert not segment.exists()
    assert f"an agent of its raylet (pid {agents[0]}) was frozen at 20" in (head.ray.last_end or "")
    assert ", replaced in " in (head.ray.last_end or "")

    assert await head.count_up() == 1
    raylet = head.ray.pid
    assert raylet
    os.kill(raylet, signal.SIGSTOP)
    await head.another(3)
    assert (head.ray.last_end or "").startswith("its raylet was frozen at 20")
    assert await head.count_up() == 1, "it went with its head"
