"""The supervisor with real processes: one stack, broken in every way, beside somebody else's Ray cluster."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from ratchet.spec import names
from ratchet.spec.control import ProbeAnswer, SessionInfo, SessionRequest
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.ids import CLUSTER_QUEUE, RAY_NAMESPACE, actor_name
from ratchet.spec.run_spec import EnvironmentSpec, GenerationSpec, GrpoSpec, PolicySpec, RunSpec
from workers.supervisor.environment import STACK_VARIABLE, stack_environment
from workers.supervisor.ports import RAY_PORTS, are_free
from workers.supervisor.processes import arguments, look, of_head, running
from workers.supervisor.ray_head import make_token
from workers.supervisor.ray_launch import HeadReport, HeadRequest
from workers.supervisor.state import PartStatus, SupervisorState
from workers.temporal import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BACK_WITHIN = 30.0
"""For a part that was killed: seconds are the rule, but two cores may be shared with other tests."""

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


# --- helpers


def supervisor(
    home: Home, *words: str, within: float = 60.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """One `python -m workers.supervisor` command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "workers.supervisor", *words, "--home", str(home.root)],
        capture_output=True,
        text=True,
        timeout=within,
        env=os.environ | variables,
        check=False,
    )


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


def part(home: Home, name: str) -> PartStatus:
    return next(part for part in SupervisorState.load(home).parts if part.name == name)


def pid_of(home: Home, name: str) -> int:
    pid = part(home, name).pid
    assert pid is not None
    return pid


def until(condition: Callable[[], bool], what: str) -> float:
    """Wait for it: how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < BACK_WITHIN, f"{what}: not within {BACK_WITHIN:.0f} s"
        time.sleep(0.02)
    return time.monotonic() - began


def end_and_wait(
    home: Home, name: str, victim: int | None = None, how: signal.Signals = signal.SIGKILL
) -> None:
    """Kill or freeze the part's process and wait until another one is ready in its place."""
    old = part(home, name)
    assert old.pid is not None
    os.kill(victim or old.pid, how)

    def another_is_ready() -> bool:
        now = part(home, name)
        return now.state == "ready" and now.starts > old.starts and now.pid is not None

    until(another_is_ready, f"{name} back after {how.name}")


def naming(home: Home) -> list[str]:
    """Every process that names the home, found without the supervisor's own notion of what belongs to it."""
    root = os.fsencode(str(home.root))
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


# --- what the tests share


@dataclass(frozen=True)
class Foreign:
    """A Ray cluster that has nothing to do with the stack."""

    home: Home
    """Only for its token."""
    address: str
    pids: tuple[int, int]
    driver: Driver


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    home = Home(tmp_path_factory.mktemp("foreign"))
    make_token(home)
    port = next(port for port in range(18000, 20000, RAY_PORTS) if are_free(port, RAY_PORTS))
    temp = Path(f"/tmp/foreign-{uuid.uuid4().hex[:8]}")
    temp.mkdir()
    report = home.root / "report.json"
    request = HeadRequest(
        address="127.0.0.1",
        first_port=port,
        last_port=port + RAY_PORTS - 1,
        temp_folder=str(temp),
        num_cpus=1,
        object_store_bytes=100 << 20,
        report=str(report),
    )
    theirs = stack_environment(home)
    del theirs[HOME_VARIABLE], theirs[STACK_VARIABLE]
    with (home.root / "log").open("w") as log:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "workers.supervisor.ray_launch", request.model_dump_json()],
            env=theirs,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        launcher.wait(60)
        pids = HeadReport.model_validate_json(report.read_text())
        driver = Driver(home, f"127.0.0.1:{port}")
        yield Foreign(home, f"127.0.0.1:{port}", (pids.gcs_server, pids.raylet), driver)
        driver.leave()
    finally:
        for process in of_head({launcher.pid}, set()):
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(temp, ignore_errors=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, foreign: Foreign) -> Iterator[Home]:
    """A stack without its control worker, which the tests of this module break one after the other."""
    home = Home(tmp_path_factory.mktemp("stack"))
    try:
        up = supervisor(home, "up", "--detach", "--parts", "temporal,ray,api", "--json")
        assert up.returncode == 0, up.stderr
        yield home
    finally:
        assert supervisor(home, "down").returncode == 0


@pytest.fixture(scope="module")
def ray_address(home: Home) -> str:
    address = SupervisorState.load(home).ray_address
    assert address
    return address


@pytest.fixture(scope="module")
def driver(home: Home, ray_address: str) -> Iterator[Driver]:
    driver = Driver(home, ray_address)
    yield driver
    driver.leave()


# --- a stack that is up


def test_up_says_where_everything_is(home: Home) -> None:
    status = supervisor(home, "status", "--json")
    found = json.loads(status.stdout)
    assert found["running"]
    assert found["ready"]
    assert {part["name"]: part["state"] for part in found["parts"]} == dict.fromkeys(
        ("temporal", "ray", "ray-gcs", "api"), "ready"
    )
    with urllib.request.urlopen(found["temporal_ui"], timeout=10) as page:
        assert page.status == 200
    log = json.loads(supervisor(home, "logs", "temporal", "--json").stdout)
    assert Path(log["path"]).is_file()


def test_a_second_start_is_refused_with_the_reason(home: Home) -> None:
    second = supervisor(home, "up", "--detach")
    assert second.returncode == 1
    assert f"supervisor pid {SupervisorState.load(home).supervisor_pid}" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1


async def test_closed_workflows_are_kept_for_a_year(home: Home) -> None:
    client = await connect(SupervisorState.load(home).temporal_address)
    answer = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=names.NAMESPACE)
    )
    assert answer.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(days=365)


def test_ray_is_closed_to_others(home: Home, ray_address: str) -> None:
    assert home.ray_token.stat().st_mode & 0o777 == 0o600
    port = int(ray_address.rpartition(":")[2])
    outside = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }
    for address in outside:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, port)) != 0, f"Ray listens on {address}"


# --- parts that die


async def test_temporal_killed_comes_back_with_its_histories(home: Home) -> None:
    client = await connect(SupervisorState.load(home).temporal_address)
    handle = await client.start_workflow("Nobody", id="kept", task_queue="nobody-polls")
    await asyncio.to_thread(end_and_wait, home, "temporal")
    assert (await handle.describe()).id == "kept"


def test_an_api_that_is_frozen_is_noticed_and_replaced(home: Home) -> None:
    """It may not touch a file for its supervisor, as workers do: it is asked."""
    end_and_wait(home, "api", how=signal.SIGSTOP)
    with urllib.request.urlopen(f"{SupervisorState.load(home).api_url}/healthz", timeout=10) as page:
        assert page.status == 200


def test_gcs_killed_alone_loses_no_actor(home: Home, driver: Driver) -> None:
    assert driver.count_up("before-gcs") == 1
    raylet = pid_of(home, "ray")
    end_and_wait(home, "ray-gcs")
    assert pid_of(home, "ray") == raylet
    assert driver.count_up("before-gcs") == 2
    assert driver.count_up("after-gcs") == 1


# --- sessions

SESSION = SessionRequest(
    run="r-1",
    session=1,
    spec=RunSpec(
        name="tiny",
        policy=PolicySpec(model="tiny"),
        generation=GenerationSpec(max_new_tokens=4),
        grpo=GrpoSpec(num_prompts_per_step=2, num_generations_per_prompt=8, max_num_steps=1),
        environment=EnvironmentSpec(name="arithmetic"),
    ),
)
WORKER = "session-r-1-1"


async def order(home: Home, activity: str, result: type | None = None) -> Any:
    """Have the supervisor do something about the session, as its workflow would."""
    client = await connect(SupervisorState.load(home).temporal_address)
    return await client.execute_activity(
        activity,
        SESSION,
        id=f"{activity}-{uuid.uuid4().hex}",
        task_queue=CLUSTER_QUEUE,
        start_to_close_timeout=timedelta(seconds=60),
        result_type=result,
    )


async def test_an_open_session_is_joined_and_its_worker_comes_back(home: Home) -> None:
    opened: SessionInfo = await order(home, names.OPEN_SESSION, SessionInfo)
    assert opened.queue == "ratchet-session-r-1-1"
    first = pid_of(home, WORKER)
    await order(home, names.OPEN_SESSION, SessionInfo)
    assert pid_of(home, WORKER) == first, "opening an open session joins it"

    os.kill(first, signal.SIGKILL)
    took = await asyncio.to_thread(until, lambda: part(home, WORKER).starts == 2, "another session worker")
    assert took < 1.0
    await order(home, names.RESTART_WORKER, SessionInfo)
    assert pid_of(home, WORKER) != first
    answer: ProbeAnswer = await order(home, names.PROBE_SESSION, ProbeAnswer)
    assert answer.head
    assert answer.worker


def test_a_lost_head_is_replaced_at_the_same_address_and_its_sessions_come_back(
    home: Home, ray_address: str, driver: Driver
) -> None:
    assert driver.count_up("before-head") == 1
    driver.leave()
    before = part(home, WORKER)
    # Its death ends the raylet, which cannot be executed again: it would be a new node.
    agent = next(process.pid for process in running() if process.parent == pid_of(home, "ray"))
    end_and_wait(home, "ray", victim=agent)
    until(
        lambda: part(home, WORKER).starts > before.starts and part(home, WORKER).state == "ready",
        "another session worker after another head",
    )
    assert look(before.pid or 0) is None, "the old worker went with the old head"
    assert SupervisorState.load(home).ray_address == ray_address
    assert driver.count_up("before-head") == 1


async def test_a_closed_session_leaves_no_worker_actor_or_folder(home: Home, driver: Driver) -> None:
    worker = pid_of(home, WORKER)
    mine, others = actor_name("trainer", "r-1", 1, rank=7), actor_name("trainer", "r-1", 11, rank=7)
    assert await asyncio.to_thread(driver.count_up, mine) == 1
    assert await asyncio.to_thread(driver.count_up, others) == 1
    await order(home, names.CLOSE_SESSION)
    assert look(worker) is None
    assert not home.session_folder("r-1", 1).exists()
    assert await asyncio.to_thread(driver.count_up, mine) == 1, "its actors are gone"
    assert await asyncio.to_thread(driver.count_up, others) == 2, "those of other sessions are not"


# --- the end of a stack


def test_down_leaves_nothing_even_after_the_supervisor_was_killed(
    home: Home, driver: Driver, foreign: Foreign
) -> None:
    assert foreign.driver.count_up("theirs") == 1
    segment = Path(f"/dev/shm/ratchet-{home.tag}-refit")
    segment.write_bytes(b"weights")
    driver.count_up("running")
    os.kill(SupervisorState.load(home).supervisor_pid, signal.SIGKILL)

    assert supervisor(home, "status").returncode == 3
    assert json.loads(supervisor(home, "down", "--json").stdout)["processes"] > 3
    assert naming(home) == []
    assert not segment.exists()
    assert not home.ray_temp.exists()
    assert not home.state_file.exists()
    assert foreign.driver.count_up("theirs") == 2


def test_up_after_down_has_the_same_ports_and_histories(home: Home) -> None:
    before = (home.root / "ports.json").read_text()
    words = [sys.executable, "-m", "workers.supervisor", "--foreground", "--parts", "temporal", "--home"]
    with subprocess.Popen([*words, str(home.root)], stdout=subprocess.PIPE, text=True) as foreground:
        try:
            assert foreground.stdout
            assert "Ratchet is up" in foreground.stdout.readline()
            assert (home.root / "ports.json").read_text() == before
            state = SupervisorState.load(home)

            async def kept() -> str:
                client = await connect(state.temporal_address)
                return (await client.get_workflow_handle("kept").describe()).id

            assert asyncio.run(kept()) == "kept"
        finally:
            foreground.send_signal(signal.SIGINT)
        assert foreground.wait(20) == 0
    assert naming(home) == []


# --- starts that fail


def test_a_port_in_use_is_named_with_its_owner_and_the_fix(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = supervisor(home, "up", "--detach", "--ui-port", str(port))
    assert failed.returncode == 1
    assert f"port {port} (--ui-port) is in use by pid {os.getpid()}" in failed.stderr
    assert "choose another" in failed.stderr
    assert naming(home) == []


def test_a_temporal_address_where_nobody_answers(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        failed = supervisor(home, "up", "--detach", "--temporal", address, "--json")
    assert failed.returncode == 3
    assert f"nobody answers as Temporal at {address}" in json.loads(failed.stdout)["error"]["message"]
    assert naming(home) == []


def test_a_ray_cluster_of_another_version_is_refused(tmp_path: Path, foreign: Foreign) -> None:
    tamper = """
import json, sys
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
metadata = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster"))
metadata["ray_version"] = "2.1.0"
client.internal_kv_put(b"CLUSTER_METADATA", json.dumps(metadata).encode(), True, namespace=b"cluster")
"""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(foreign.home.ray_token)}
    up = ("up", "--detach", "--parts", "ray", "--ray", foreign.address)
    good = Home(tmp_path / "good")
    accepted = supervisor(good, *up, **token)
    assert accepted.returncode == 0, accepted.stderr
    assert SupervisorState.load(good).ray_address == foreign.address
    supervisor(good, "down")

    subprocess.run(
        [sys.executable, "-c", tamper, foreign.address],
        env=stack_environment(foreign.home),
        check=True,
        timeout=30,
    )
    refused = supervisor(Home(tmp_path / "bad"), *up, **token)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "2.1.0" in refused.stderr
    assert version("ray") in refused.stderr
    assert all(look(pid) for pid in foreign.pids), "it is somebody else's: never touched"
