"""A supervised child, with real processes: what happens when it ends, cannot start, or falls silent."""

import asyncio
import ctypes
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from workers.supervisor import children
from workers.supervisor.children import Child, Phase, Plan
from workers.supervisor.reaper import PR_SET_CHILD_SUBREAPER, Reaper

READY = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
BEATING = """
import asyncio, pathlib, sys
from workers.liveness import beat_if_asked
pathlib.Path(sys.argv[1]).touch()
asyncio.run(beat_if_asked())
"""


@pytest_asyncio.fixture(loop_scope="session")
async def reaper() -> AsyncIterator[Reaper]:
    reaper = Reaper()
    reaper.install()
    yield reaper
    asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
    # Orphans go to init again: nobody here would wait for those of later tests.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def plan(tmp_path: Path, code: str, **changes: object) -> Plan:
    ready = tmp_path / "ready"

    async def is_ready(_pid: int, _began: float) -> bool:
        return ready.exists()

    values: dict = {
        "name": "child",
        "argv": [sys.executable, "-c", code, str(ready)],
        "environment": dict(os.environ),
        "log": tmp_path / "child.log",
        "is_ready": is_ready,
        "ready_within": 20.0,
        "before_start": lambda: ready.unlink(missing_ok=True),
    }
    return Plan(**values | changes)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def nothing() -> None:
    pass


async def test_a_killed_child_is_started_again_at_once(tmp_path: Path, reaper: Reaper) -> None:
    child = Child(plan(tmp_path, READY), reaper, nothing)
    child.start()
    await child.ready(20)
    first = child.pid
    assert first
    loop = asyncio.get_running_loop()
    began = loop.time()
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.starts == 2)
    assert loop.time() - began < 0.3
    await child.ready(20)
    assert child.pid != first
    await child.stop()
    assert child.pid is None


async def test_a_child_that_cannot_run_fails_with_its_last_words(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LONGEST_PAUSE", 0.1)
    child = Child(plan(tmp_path, "import sys; sys.exit('no such model')"), reaper, nothing)
    child.start()
    with pytest.raises(Unavailable, match=r"ended 5 times .*: no such model \(log: .*child.log\)"):
        await child.ready(20)
    assert child.phase is Phase.FAILED
    await child.stop()


async def test_a_program_that_does_not_exist_fails_like_one_that_ends(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LONGEST_PAUSE", 0.1)
    child = Child(plan(tmp_path, "", argv=["/no/such/program"]), reaper, nothing)
    child.start()
    with pytest.raises(Unavailable, match="ended 5 times"):
        await child.ready(20)
    await child.stop()


async def test_a_child_that_is_not_ready_in_time_says_so(tmp_path: Path, reaper: Reaper) -> None:
    child = Child(plan(tmp_path, "import time; time.sleep(60)"), reaper, nothing)
    child.start()
    with pytest.raises(Unavailable, match="not ready within 0 s: it said nothing"):
        await child.ready(0.3)
    await child.stop()


@pytest.mark.parametrize("freeze", [signal.SIGSTOP, None], ids=["stopped", "goes-on"])
async def test_a_child_that_has_beaten_and_falls_silent_is_replaced(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch, freeze: signal.Signals | None
) -> None:
    monkeypatch.setattr(deadlines, "CHILD_SILENT", 2.0)
    alive = tmp_path / "alive"
    child = Child(plan(tmp_path, BEATING, alive_file=alive), reaper, nothing)
    child.start()
    await child.ready(20)
    await until(alive.exists)
    first = child.pid
    assert first
    if freeze:
        os.kill(first, freeze)
        await until(lambda: child.starts == 2)
    else:
        await asyncio.sleep(4)
        assert child.pid == first
    await child.stop()


async def test_a_held_child_is_killed_and_comes_back_when_released(tmp_path: Path, reaper: Reaper) -> None:
    child = Child(plan(tmp_path, READY), reaper, nothing)
    child.start()
    await child.ready(20)
    child.hold()
    await until(lambda: child.phase is Phase.HELD)
    assert child.pid is None
    child.release()
    await child.ready(20)
    assert child.starts == 2
    await child.stop()


async def test_a_released_child_starts_at_once_however_often_it_failed_before(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "FIRST_PAUSE", 60.0)
    child = Child(plan(tmp_path, "raise SystemExit(1)"), reaper, nothing)
    child.start()
    await until(lambda: child.phase is Phase.WAITING)
    child.hold()
    await until(lambda: child.phase is Phase.HELD)
    child.release()
    await until(lambda: child.starts == 2)
    await child.stop()


async def test_a_child_says_how_it_ended_last(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child(plan(tmp_path, READY), reaper, nothing)
    child.start()
    await child.ready(20)
    assert child.last_end is None
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: child.starts == 2)
    assert re.fullmatch(r"ended with -9 at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", child.last_end or "")
    await child.ready(20)
    await child.replace()
    await until(lambda: child.starts == 3)
    assert (child.last_end or "").startswith("was replaced on request at 2")
    await child.stop()


async def test_stop_kills_what_ignores_sigterm_and_its_children(tmp_path: Path, reaper: Reaper) -> None:
    grandchild = tmp_path / "grandchild"
    code = f"""
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({str(grandchild)!r}).write_text(str(other.pid))
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""
    child = Child(plan(tmp_path, code), reaper, nothing)
    child.start()
    await child.ready(20)
    orphan = reaper.watch(int(grandchild.read_text()))
    await child.stop(grace=0.2)
    assert await asyncio.wait_for(orphan.ended, 5) == -signal.SIGKILL


async def test_a_program_that_takes_too_long_is_killed(tmp_path: Path, reaper: Reaper) -> None:
    with (tmp_path / "out").open("wb") as output, pytest.raises(Unavailable, match="did not end within 0 s"):
        await reaper.run(["sleep", "60"], environment={}, output=output, within=0.2)


async def test_the_end_of_an_adopted_grandchild_is_known(tmp_path: Path, reaper: Reaper) -> None:
    """As with Ray's launcher: it starts a process, tells its pid, and ends."""
    start = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    with (tmp_path / "out").open("wb") as output:
        code = await reaper.run(
            [sys.executable, "-c", start], environment=dict(os.environ), output=output, within=10
        )
    assert code == 0
    adopted = reaper.watch(int((tmp_path / "out").read_text()))
    assert adopted.alive
    os.kill(adopted.pid, signal.SIGKILL)
    assert await asyncio.wait_for(adopted.ended, 5) == -signal.SIGKILL


async def test_a_child_that_no_longer_answers_is_replaced(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "CHILD_SILENT", 2.0)

    async def answers() -> bool:
        return child.starts > 1

    child = Child(plan(tmp_path, READY, answers=answers), reaper, nothing)
    child.start()
    await until(lambda: child.starts == 2)
    await child.ready(20)
    await child.stop()


async def test_waiting_for_an_answer_counts_as_silence(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "CHILD_SILENT", 0.6)
    monkeypatch.setattr(children, "WATCH_EVERY", 0.2)
    asked = 0

    async def answers() -> bool:
        nonlocal asked
        asked += child.starts == 1
        await asyncio.sleep(0.2)  # as a frozen server does, until the question's own deadline
        return child.starts > 1

    child = Child(plan(tmp_path, READY, answers=answers), reaper, nothing)
    child.start()
    await until(lambda: child.starts == 2)
    assert asked <= 2
    await child.stop()
