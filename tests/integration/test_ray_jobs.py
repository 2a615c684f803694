"""A stack on a Ray cluster that it reaches only through the dashboard: session workers are jobs there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.spec import names
from ratchet.spec.control import SessionInfo
from ratchet.spec.home import Home
from tests.integration.conftest import SESSION, Stack, kill_head
from workers.supervisor.environment import HEAD_VARIABLE
from workers.supervisor.ports import RAY_PORTS, are_free
from workers.supervisor.processes import look
from workers.supervisor.ray_files import make_token
from workers.temporal import connect

pytest.importorskip("aiohttp_cors", reason="a Ray dashboard needs ray[default]")

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

WORKER = "session-r-1-1"


class Dashboard:
    """A cluster as `ray start` makes it, with its dashboard."""

    def __init__(self, root: Path) -> None:
        self.credentials = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Home(root).ray_token)}
        make_token(Home(root))
        self._port = next(port for port in range(18000, 20000, RAY_PORTS) if are_free(port, RAY_PORTS))
        self.url = f"http://127.0.0.1:{self._port + 109}"
        self._temp, self._mark = Path(f"/tmp/foreign-{uuid.uuid4().hex[:8]}"), uuid.uuid4().hex
        self._log = root / "log"
        self._sessions: set[int] = set()

    def start(self) -> None:
        port = self._port
        words = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in {
                "node_ip_address": "127.0.0.1",
                "port": port,
                "node_manager_port": port + 1,
                "object_manager_port": port + 2,
                "runtime_env_agent_port": port + 3,
                "dashboard_agent_grpc_port": port + 4,
                "dashboard_agent_listen_port": port + 5,
                "metrics_export_port": port + 6,
                "min_worker_port": port + 7,
                "max_worker_port": port + 107,
                "ray_client_server_port": port + 108,
                "include_dashboard": "true",
                "dashboard_host": "127.0.0.1",
                "dashboard_port": port + 109,
                "include_log_monitor": "false",
                "temp_dir": self._temp,
                "num_cpus": 1,
                "object_store_memory": 100 << 20,
            }.items()
        ]
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        with self._log.open("w") as log:
            starter = subprocess.Popen(
                [str(Path(sys.executable).parent / "ray"), "start", "--head", *words],
                env=surroundings | loopback | self.credentials | {HEAD_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._sessions.add(starter.pid)
        assert starter.wait(90) == 0, self._log.read_text()

    def end(self) -> None:
        kill_head(self._sessions, {self._mark})
        shutil.rmtree(self._temp, ignore_errors=True)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    dashboard = Dashboard(tmp_path_factory.mktemp("dashboard"))
    try:
        dashboard.start()
        yield dashboard
    finally:
        dashboard.end()


async def test_session_workers_are_jobs_that_come_back_and_end_with_their_session(
    no_stack: Stack, dashboard: Dashboard
) -> None:
    up = no_stack.command(
        *("up", "--detach", "--parts", "temporal,ray", "--ray", dashboard.url),
        **dashboard.credentials,
        RATCHET_PYTHON=sys.executable,
    )
    assert up.returncode == 0, up.stderr
    client = await connect(no_stack.state.temporal_address)
    await client.start_workflow("Nobody", id=SESSION.run, task_queue="nobody-polls")
    await no_stack.order(names.OPEN_SESSION, SESSION, SessionInfo)

    ready = no_stack.home.session_folder("r-1", 1) / "ready.json"

    def worker() -> int:
        return json.loads(ready.read_text())["pid"] if ready.exists() else 0

    def another(than: int) -> bool:
        return worker() not in (0, than) and no_stack.part(WORKER).state == "ready"

    first = worker()
    assert no_stack.pid_of(WORKER) != first, "what runs here only stands in for it"
    os.kill(first, signal.SIGKILL)
    no_stack.until(lambda: another(than=first), "another job")
    second = worker()
    os.kill(no_stack.pid_of(WORKER), signal.SIGKILL)
    no_stack.until(lambda: another(than=second), "another job for another stand-in")
    assert look(second) is None, "two of a session never poll beside each other for long"
    third = worker()
    await no_stack.order(names.CLOSE_SESSION, SESSION)
    assert look(third) is None
    assert not ready.exists()


def test_a_cluster_without_our_code_is_refused_with_what_it_needs(
    no_stack: Stack, dashboard: Dashboard
) -> None:
    up = ("up", "--detach", "--parts", "ray", "--ray", dashboard.url)
    refused = no_stack.command(*up, **dashboard.credentials, RATCHET_PYTHON="/no/such/python")
    assert refused.returncode == 2
    assert "the cluster needs this version of Ratchet, and RATCHET_HOME at the same path" in refused.stderr
    closed = no_stack.command(*up)
    assert closed.returncode == 1
    assert "wants a token" in closed.stderr
