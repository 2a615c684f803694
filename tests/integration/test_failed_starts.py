"""A start that cannot succeed says why in one line, and leaves nothing."""

import json
import os
import socket

import pytest

from tests.integration.conftest import Stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_a_port_in_use_is_named_with_its_owner_and_the_fix(no_stack: Stack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = no_stack.command("up", "--detach", "--ui-port", str(port))
    assert failed.returncode == 1
    assert f"port {port} (--ui-port) is in use by pid {os.getpid()}" in failed.stderr
    assert "choose another" in failed.stderr
    assert no_stack.naming() == []


def test_a_temporal_address_where_nobody_answers(no_stack: Stack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        failed = no_stack.command("up", "--detach", "--temporal", address, "--json")
    assert failed.returncode == 3
    assert f"nobody answers as Temporal at {address}" in json.loads(failed.stdout)["error"]["message"]
    assert no_stack.naming() == []
