"""Whole stacks, driven as people drive them, beside somebody else's Ray cluster."""

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ratchet.spec.control import SessionRequest
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.ids import CLUSTER_QUEUE, RAY_NAMESPACE
from ratchet.spec.run_spec import (
    DataPlaneSpec,
    EnvironmentSpec,
    GenerationSpec,
    GrpoSpec,
    PolicySpec,
    RunSpec,
)
from workers.supervisor.environment import STACK_VARIABLE, stack_environment
from workers.supervisor.ports import RAY_PORTS, are_free
from workers.supervisor.processes import arguments, of_head, running, signal_to
from workers.supervisor.ray_files import make_token
from workers.supervisor.ray_launch import HeadReport, HeadRequest
from workers.supervisor.reaper import PR_SET_CHILD_SUBREAPER, Reaper
from workers.supervisor.state import PartStatus, SupervisorState
from workers.temporal import connect

BACK_WITHIN = 30.0
"""For a part that was killed: seconds are the rule, but two cores may be shared with other tests."""

SESSION = SessionRequest(
    run="r-1",
    session=1,
    spec=RunSpec(
        name="tiny",
        policy=PolicySpec(model="tiny"),
        generation=GenerationSpec(max_new_tokens=4),
        grpo=GrpoSpec(num_prompts_per_step=2, num_generations_per_prompt=8, max_num_steps=1),
        environment=EnvironmentSpec(name="arithmetic"),
        data_plane=DataPlaneSpec(backend="memory"),
    ),
)

DRIVER = """
import sys, ray
ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False, configure_logging=False)

@ray.remote(num_cpus=0)
class Counter:
    def __init__(self): self.value = 0
    def up(self): self.value += 1; return self.value

for name in map(str.strip, sys.stdin):
    actor = Counter.options(name=name, lifetime="detached", get_if_exists=True).remote()
    print(ray.get(actor.up.remote(), timeout=20), flush=True)
"""


class Driver:
    """A Ray driver beside the stack, started when it is needed: Ray takes seconds to import."""

    def __init__(self, cluster: Home, address: str) -> None:
        self._cluster, self._address = cluster, address
        self._log = cluster.root / "driver.log"
        self._process: subprocess.Popen[str] | None = None

    def count_up(self, actor: str) -> int:
        """Find or make a detached counter and count it up: its value, 1 if it is new."""
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{actor}\n")
        process.stdin.flush()
        watchdog = threading.Timer(40, process.kill)
        watchdog.start()
        answer = process.stdout.readline()
        watchdog.cancel()
        assert answer, self._log.read_text()[-2000:]
        return int(answer)

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, self._address, RAY_NAMESPACE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=stack_environment(self._cluster),
            )

    def leave(self) -> None:
        """Before its head is killed, and at the end."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Stack:
    """One RATCHET_HOME, and `python -m workers.supervisor` on it."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)

    def command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end, with these variables in its environment."""
        return subprocess.run(
            [sys.executable, "-m", "workers.supervisor", *words, "--home", str(self.home.root)],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | variables,
            check=False,
        )

    def up(self, parts: str) -> None:
        done = self.command("up", "--detach", "--parts", parts, "--json")
        assert done.returncode == 0, done.stderr

    @property
    def state(self) -> SupervisorState:
        return SupervisorState.load(self.home)

    @property
    def ray_address(self) -> str:
        address = self.state.ray_address
        assert address
        return address

    def part(self, name: str) -> PartStatus:
        return next(part for part in self.state.parts if part.name == name)

    def pid_of(self, name: str) -> int:
        pid = self.part(name).pid
        assert pid is not None
        return pid

    def until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait for it: how long it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < BACK_WITHIN, f"{what}: not within {BACK_WITHIN:.0f} s"
            time.sleep(0.02)
        return time.monotonic() - began

    def end_and_wait(
        self, name: str, victim: int | None = None, how: signal.Signals = signal.SIGKILL
    ) -> None:
        """Kill or freeze the part's process and wait until another one is ready in its place."""
        old = self.part(name)
        assert old.pid is not None
        os.kill(victim or old.pid, how)

        def another_is_ready() -> bool:
            now = self.part(name)
            return now.state == "ready" and now.starts > old.starts and now.pid is not None

        self.until(another_is_ready, f"{name} back after {how.name}")

    def naming(self) -> list[str]:
        """Every process that names the home, found without the supervisor's own notion of what belongs."""
        root = os.fsencode(str(self.home.root))
        found: list[str] = []
        for process in running():
            if process.pid == os.getpid():
                continue
            for file in ("cmdline", "environ"):
                try:
                    if root in Path(f"/proc/{process.pid}/{file}").read_bytes():
                        found.append(f"{process.pid} {arguments(process.pid)[:4]}")
                        break
                except OSError:
                    break
        return found

    async def order(self, activity: str, session: SessionRequest, result: type | None = None) -> Any:
        """Have the supervisor do something about the session, as its workflow would."""
        client = await connect(self.state.temporal_address)
        return await client.execute_activity(
            activity,
            session,
            id=f"{activity}-{uuid.uuid4().hex}",
            task_queue=CLUSTER_QUEUE,
            start_to_close_timeout=timedelta(seconds=60),
            result_type=result,
        )


@pytest_asyncio.fixture(loop_scope="session")
async def reaper() -> AsyncIterator[Reaper]:
    """For a part of a supervisor inside the test."""
    reaper = Reaper()
    reaper.install()
    yield reaper
    asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack without its control worker, which the tests of a module break one after the other."""
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        stack.up("temporal,ray,api")
        yield stack
    finally:
        assert stack.command("down").returncode == 0


@pytest.fixture
def no_stack(tmp_path: Path) -> Iterator[Stack]:
    """A home on which nothing runs, nor will when the test is over."""
    stack = Stack(tmp_path / "home")
    yield stack
    stack.command("down")


@pytest.fixture(scope="module")
def driver(stack: Stack) -> Iterator[Driver]:
    driver = Driver(stack.home, stack.ray_address)
    yield driver
    driver.leave()


class Foreign:
    """A Ray cluster that has nothing to do with the stack; to be started and ended at will."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        """Only for its token."""
        make_token(self.home)
        self._port = next(port for port in range(18000, 20000, RAY_PORTS) if are_free(port, RAY_PORTS))
        self.address = f"127.0.0.1:{self._port}"
        self.driver = Driver(self.home, self.address)
        self._temp = Path(f"/tmp/foreign-{uuid.uuid4().hex[:8]}")
        self._launcher: subprocess.Popen[bytes] | None = None
        self.pids: tuple[int, int] = (0, 0)

    @property
    def credentials(self) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.home.ray_token)}

    def start(self) -> None:
        self._temp.mkdir()
        report = self.home.root / "report.json"
        request = HeadRequest(
            address="127.0.0.1",
            first_port=self._port,
            last_port=self._port + RAY_PORTS - 1,
            temp_folder=str(self._temp),
            num_cpus=1,
            object_store_bytes=100 << 20,
            report=str(report),
        )
        theirs = stack_environment(self.home)
        del theirs[HOME_VARIABLE], theirs[STACK_VARIABLE]
        with (self.home.root / "log").open("w") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "workers.supervisor.ray_launch", request.model_dump_json()],
                env=theirs,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._launcher.wait(60)
        heads = HeadReport.model_validate_json(report.read_text())
        self.pids = heads.gcs_server, heads.raylet

    def end(self) -> None:
        self.driver.leave()
        if self._launcher:
            kill_head({self._launcher.pid}, set())
        shutil.rmtree(self._temp, ignore_errors=True)


def kill_head(sessions: set[int], marks: set[str]) -> None:
    """End a head's processes, those that it starts meanwhile included."""
    while left := of_head(sessions, marks):
        for process in left:
            signal_to(process.pid, signal.SIGKILL)
        time.sleep(0.02)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    foreign = Foreign(tmp_path_factory.mktemp("foreign"))
    try:
        foreign.start()
        yield foreign
    finally:
        foreign.end()
