"""One supervisor per home; what status and logs read."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from ratchet.spec.faults import Conflict, SpecError
from ratchet.spec.home import Home
from workers.liveness import beat
from workers.supervisor.state import SupervisorLock, supervisor_pid
from workers.supervisor.status import log, status


def test_the_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert supervisor_pid(home) is None
    with SupervisorLock(home):
        assert supervisor_pid(home) == os.getpid()
        with pytest.raises(Conflict, match=f"supervisor pid {os.getpid()}, since 20"):
            SupervisorLock(home)
    assert supervisor_pid(home) is None
    with SupervisorLock(home):
        pass


def test_status_of_a_home_where_nothing_runs_creates_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "new")
    assert not status(home).running
    assert not home.root.exists()


def test_a_log_that_does_not_exist_is_answered_with_those_that_do(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.logs.mkdir()
    (home.logs / "api.log").write_text("hello")
    assert log(home, "api").read_text() == "hello"
    with pytest.raises(SpecError, match=r"no log 'apl' .* there is api"):
        log(home, "apl")


async def test_beat_touches_its_file_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "alive" / "me"
    task = asyncio.create_task(beat(path))
    async with asyncio.timeout(5):
        while not path.exists():
            await asyncio.sleep(0.01)
        first = path.stat().st_mtime_ns
        while path.stat().st_mtime_ns == first:
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
