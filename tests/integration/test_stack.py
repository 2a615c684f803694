"""A stack that is up, parts of it that die, and its end, beside somebody else's Ray cluster."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from ratchet.spec import names
from tests.integration.conftest import Driver, Foreign, Stack
from workers.temporal import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_up_says_where_everything_is(stack: Stack) -> None:
    found = json.loads(stack.command("status", "--json").stdout)
    assert found["running"]
    assert found["ready"]
    assert {part["name"]: part["state"] for part in found["parts"]} == dict.fromkeys(
        ("temporal", "ray", "ray-gcs", "api"), "ready"
    )
    with urllib.request.urlopen(found["temporal_ui"], timeout=10) as page:
        assert page.status == 200
    log = json.loads(stack.command("logs", "temporal", "--json").stdout)
    assert Path(log["path"]).is_file()


def test_a_second_start_is_refused_with_the_reason(stack: Stack) -> None:
    second = stack.command("up", "--detach")
    assert second.returncode == 1
    assert f"supervisor pid {stack.state.supervisor_pid}" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1


async def test_closed_workflows_are_kept_for_a_year(stack: Stack) -> None:
    client = await connect(stack.state.temporal_address)
    answer = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=names.NAMESPACE)
    )
    assert answer.config.workflow_execution_retention_ttl.ToTimedelta() == timedelta(days=365)


def test_ray_is_closed_to_others(stack: Stack) -> None:
    assert stack.home.ray_token.stat().st_mode & 0o777 == 0o600
    port = int(stack.ray_address.rpartition(":")[2])
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


async def test_temporal_killed_comes_back_with_its_histories(stack: Stack) -> None:
    client = await connect(stack.state.temporal_address)
    handle = await client.start_workflow("Nobody", id="kept", task_queue="nobody-polls")
    await asyncio.to_thread(stack.end_and_wait, "temporal")
    assert (await handle.describe()).id == "kept"


def test_an_api_that_is_frozen_is_noticed_and_replaced_and_status_and_doctor_say_so(stack: Stack) -> None:
    """It may not touch a file for its supervisor, as workers do: it is asked."""
    stack.end_and_wait("api", how=signal.SIGSTOP)
    with urllib.request.urlopen(f"{stack.state.api_url}/healthz", timeout=10) as page:
        assert page.status == 200
    (line,) = [line for line in stack.command("status").stdout.splitlines() if line.startswith("  api ")]
    assert "started 2×" in line
    assert "was silent for 10 s at 20" in line
    doctor = json.loads(stack.command("doctor", "--json").stdout)
    (check,) = [check for check in doctor["checks"] if check["name"] == "api"]
    assert "was silent for 10 s at 20" in check["found"]
    assert "ratchet logs api" in check["fix"]


# --- the end


def test_down_leaves_nothing_even_after_the_supervisor_was_killed(
    stack: Stack, driver: Driver, foreign: Foreign
) -> None:
    assert foreign.driver.count_up("theirs") == 1
    segment = Path(f"/dev/shm/ratchet-{stack.home.tag}-refit")
    segment.write_bytes(b"weights")
    driver.count_up("running")
    os.kill(stack.state.supervisor_pid, signal.SIGKILL)

    assert stack.command("status").returncode == 3
    assert json.loads(stack.command("down", "--json").stdout)["processes"] > 3
    assert stack.naming() == []
    assert not segment.exists()
    assert not stack.home.ray_temp.exists()
    assert not stack.home.state_file.exists()
    assert foreign.driver.count_up("theirs") == 2


def test_up_after_down_has_the_same_ports_and_histories(stack: Stack) -> None:
    before = (stack.home.root / "ports.json").read_text()
    words = [sys.executable, "-m", "workers.supervisor", "--foreground", "--parts", "temporal", "--home"]
    with subprocess.Popen([*words, str(stack.home.root)], stdout=subprocess.PIPE, text=True) as foreground:
        try:
            assert foreground.stdout
            assert "Ratchet is up" in foreground.stdout.readline()
            assert (stack.home.root / "ports.json").read_text() == before
            address = stack.state.temporal_address

            async def kept() -> str:
                client = await connect(address)
                return (await client.get_workflow_handle("kept").describe()).id

            assert asyncio.run(kept()) == "kept"
        finally:
            foreground.send_signal(signal.SIGINT)
        assert foreground.wait(20) == 0
    assert stack.naming() == []
