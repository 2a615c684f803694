"""Prometheus finds every process, on a port that stays."""

import json
import socket
from pathlib import Path

import pytest

from ratchet.spec.home import Home
from ratchet.telemetry import targets


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(targets.HOST_VARIABLE, raising=False)


def read(home: Home, process: str) -> list[dict[str, object]]:
    return json.loads((home.prometheus / f"{process}.json").read_text())


def test_a_process_is_found_and_keeps_its_port(tmp_path: Path) -> None:
    home, asked = Home(tmp_path), []
    targets.offer(home, "session-r-1", asked.append, run="r")
    targets.offer(home, "session-r-1", asked.append, run="r")
    assert asked[0] == asked[1]
    assert read(home, "session-r-1") == [
        {"targets": [asked[0]], "labels": {"process": "session-r-1", "run": "r"}}
    ]
    targets.withdraw(home, "session-r-1")
    assert list(home.prometheus.iterdir()) == []


def test_a_port_that_was_taken_meanwhile_is_changed(tmp_path: Path) -> None:
    home, asked = Home(tmp_path), []

    def listen(address: str) -> None:
        asked.append(address)
        host, _, port = address.rpartition(":")
        socket.create_server((host, int(port))).close()

    targets.offer(home, "api", listen)
    with socket.create_server(("127.0.0.1", int(asked[0].rpartition(":")[2]))):
        targets.offer(home, "api", listen)
    assert len(asked) == 3
    assert read(home, "api")[0]["targets"] == [asked[2]]
    assert asked[2] != asked[0]


def test_in_a_container_it_is_found_by_the_name_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, asked = Home(tmp_path), []
    monkeypatch.setenv(targets.HOST_VARIABLE, "0.0.0.0")
    targets.offer(home, "api", asked.append)
    port = asked[0].removeprefix("0.0.0.0:")
    assert read(home, "api")[0]["targets"] == [f"{socket.gethostname()}:{port}"]


def test_a_process_goes_on_without_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path)

    def refuse(address: str) -> None:
        raise RuntimeError("no more ports")

    targets.offer(home, "api", refuse)
    assert "no more ports" in caplog.text
    monkeypatch.setenv(targets.HOST_VARIABLE, targets.OFF)
    targets.offer(home, "api", lambda address: pytest.fail("it is off"))
    assert not home.prometheus.exists()
