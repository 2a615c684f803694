"""A stack on a Ray cluster that somebody else runs, and that comes and goes as it likes."""

import asyncio
import subprocess
import sys
from importlib.metadata import version

import pytest

from ratchet.spec import names
from ratchet.spec.control import SessionInfo
from tests.integration.conftest import SESSION, Foreign, Stack
from workers.supervisor.environment import stack_environment
from workers.supervisor.processes import look
from workers.temporal import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WORKER = "session-r-1-1"


async def test_drivers_go_with_the_cluster_and_come_back_with_it(no_stack: Stack, foreign: Foreign) -> None:
    up = ("up", "--detach", "--parts", "temporal,ray", "--ray", foreign.address)
    accepted = no_stack.command(*up, **foreign.credentials)
    assert accepted.returncode == 0, accepted.stderr
    assert no_stack.ray_address == foreign.address
    client = await connect(no_stack.state.temporal_address)
    await client.start_workflow("Nobody", id=SESSION.run, task_queue="nobody-polls")
    await no_stack.order(names.OPEN_SESSION, SESSION, SessionInfo)

    def replaced(before: int) -> bool:
        part = no_stack.part(WORKER)
        return part.starts > before and part.state == "ready"

    foreign.end()
    foreign.start()  # another one, at the same address, within seconds
    await asyncio.to_thread(no_stack.until, lambda: replaced(1), "another worker for another cluster")
    assert "came back after" in (no_stack.part("ray").last_end or "")

    worker = no_stack.pid_of(WORKER)
    foreign.end()
    await asyncio.to_thread(no_stack.until, lambda: no_stack.part("ray").state == "away", "its absence told")
    await asyncio.to_thread(no_stack.until, lambda: look(worker) is None, "the worker killed")
    foreign.start()
    await asyncio.to_thread(no_stack.until, lambda: replaced(2), "another worker")
    assert no_stack.part("ray").state == "existing"

    no_stack.command("down")
    assert all(look(pid) for pid in foreign.pids), "it is somebody else's: never touched"


def test_a_cluster_of_another_version_is_refused(no_stack: Stack, foreign: Foreign) -> None:
    tamper = """
import json, sys
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
metadata = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster"))
metadata["ray_version"] = "2.1.0"
client.internal_kv_put(b"CLUSTER_METADATA", json.dumps(metadata).encode(), True, namespace=b"cluster")
"""
    subprocess.run(
        [sys.executable, "-c", tamper, foreign.address],
        env=stack_environment(foreign.home),
        check=True,
        timeout=30,
    )
    up = ("up", "--detach", "--parts", "ray", "--ray", foreign.address)
    refused = no_stack.command(*up, **foreign.credentials)
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "2.1.0" in refused.stderr
    assert version("ray") in refused.stderr
    assert all(look(pid) for pid in foreign.pids)
