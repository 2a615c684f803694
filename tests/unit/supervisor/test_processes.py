"""Whose a process is: what `down` may kill, and what it must not."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet.spec.home import HOME_VARIABLE, Home
from workers.supervisor.environment import HEAD_VARIABLE, STACK_VARIABLE, stack_environment
from workers.supervisor.processes import ancestry, end_all, is_program_of_ours, look, of_head, of_stack


@contextmanager
def sleeping(*argv: str, **variables: str) -> Iterator[int]:
    bare = {name: value for name, value in os.environ.items() if name not in (HOME_VARIABLE, STACK_VARIABLE)}
    process = subprocess.Popen(argv or ("sleep", "60"), env=bare | variables, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def pids(home: Home) -> set[int]:
    return {process.pid for process in of_stack(home)}


def test_what_carries_the_mark_belongs_and_a_shell_that_exports_the_home_does_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    root = str(home.root)
    with (
        sleeping(RATCHET_HOME=root, RATCHET_STACK=root) as ours,
        sleeping(RATCHET_HOME=root) as shell,
        sleeping("tail", "-F", f"{root}/logs/api.log") as reader,
        sleeping() as stranger,
    ):
        assert pids(home) == {ours}
        assert look(shell)
        assert look(reader)
        assert look(stranger)


def test_a_worker_started_by_hand_belongs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    code = ("-c", "import time; time.sleep(60)", "-m", "workers.control_worker")
    with sleeping(sys.executable, *code, RATCHET_HOME=str(home.root)) as worker:
        assert pids(home) == {worker}


def test_another_home_is_never_ours_even_below_our_stack(tmp_path: Path) -> None:
    home, other = Home(tmp_path / "a"), Home(tmp_path / "b")
    with sleeping(RATCHET_HOME=str(other.root), RATCHET_STACK=str(home.root)):
        assert pids(home) == set()


def test_a_process_that_overwrote_its_environment_is_known_by_its_files(tmp_path: Path) -> None:
    """As Ray's agents do, with a title longer than their command line."""
    home = Home(tmp_path)
    home.ray_temp.mkdir()
    try:
        log = home.ray_temp / "agent.log"
        code = f"""
import ctypes, time
log = open({str(log)!r}, "w")
start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[47])  # env_start, field 50
ctypes.memset(start, 0, 64)
print("overwritten", file=log, flush=True)
time.sleep(60)
"""
        with sleeping(sys.executable, "-c", code, FIRST="x" * 100) as agent:
            deadline = time.monotonic() + 10
            while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert pids(home) == {agent}
    finally:
        shutil.rmtree(home.ray_temp)


def test_this_process_and_its_ancestors_are_spared(tmp_path: Path) -> None:
    assert {os.getpid(), os.getppid()} <= ancestry()


def test_a_head_is_found_by_session_or_by_mark(tmp_path: Path) -> None:
    with sleeping() as by_session, sleeping(**{HEAD_VARIABLE: "abc"}) as by_mark, sleeping():
        found = {process.pid for process in of_head({by_session}, {"abc"})}
    assert found == {by_session, by_mark}


async def test_end_all_ends_what_left_its_session_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    root = str(home.root)
    with sleeping("sh", "-c", "setsid sleep 60 & sleep 60", RATCHET_HOME=root, RATCHET_STACK=root):
        assert await end_all(lambda: of_stack(home), within=10) >= 1
    assert pids(home) == set()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["python", "-m", "workers.control_worker"], True),
        (["python", "-u", "-m", "api", "--port", "1"], True),
        (["python", "-m", "workers.supervisor", "status"], False),
        (["python", "-m", "pytest", "workers"], False),
        (["vim", "workers.control_worker"], False),
    ],
)
def test_programs_of_ours(argv: list[str], expected: bool) -> None:
    assert is_program_of_ours(argv) is expected


def test_the_environment_of_children_leads_to_no_other_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/theirs")
    monkeypatch.setenv("RATCHET_FAILPOINTS", "train.begin=hold")
    home = Home(tmp_path)
    own = stack_environment(home)
    assert "RAY_ADDRESS" not in own
    assert own["RAY_AUTH_TOKEN_PATH"] == str(home.ray_token)
    assert own["RATCHET_FAILPOINTS"] == "train.begin=hold"
    existing = stack_environment(home, embedded_ray=False)
    assert "RAY_ADDRESS" not in existing
    assert existing["RAY_AUTH_TOKEN_PATH"] == "/theirs"
