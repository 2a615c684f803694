"""A process that was stopped is ended; one that runs, or is stopped for a moment, is not."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from ratchet.spec import deadlines
from workers.supervisor import freezing
from workers.supervisor.freezing import end_frozen

SILENT = 0.6


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    monkeypatch.setattr(deadlines, "CHILD_SILENT", SILENT)
    monkeypatch.setattr(freezing, "WATCH_EVERY", 0.1)
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


async def test_what_stays_stopped_is_ended_and_told(pair: list[subprocess.Popen[bytes]]) -> None:
    told: list[int] = []
    watch = asyncio.create_task(end_frozen(lambda: [process.pid for process in pair], told.append))
    frozen, runs = pair
    os.kill(frozen.pid, signal.SIGSTOP)
    assert await asyncio.to_thread(frozen.wait, 10) == -signal.SIGKILL
    assert told == [frozen.pid]
    assert runs.poll() is None
    watch.cancel()


async def test_what_goes_on_in_time_is_left_alone(pair: list[subprocess.Popen[bytes]]) -> None:
    watch = asyncio.create_task(end_frozen(lambda: [process.pid for process in pair], lambda pid: None))
    for _ in range(4):  # stopped for longer than SILENT in all
        os.kill(pair[0].pid, signal.SIGSTOP)
        await asyncio.sleep(SILENT / 2)
        os.kill(pair[0].pid, signal.SIGCONT)
        await asyncio.sleep(0.2)
    assert pair[0].poll() is None
    watch.cancel()
