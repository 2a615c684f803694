"""Ports are free, remembered, and refused by name."""

import os
import socket
from pathlib import Path

import pytest

from ratchet.spec.faults import Conflict
from ratchet.spec.home import Home
from workers.supervisor.ports import FIRST, LAST, RAY_PORTS, Ports, is_free

EVERYTHING = set(Ports.model_fields)


def numbers(ports: Ports) -> set[int]:
    single = {port for name, port in ports.model_dump().items() if name != "ray"}
    return single | set(range(ports.ray, ports.ray + RAY_PORTS))


def test_chosen_ports_are_free_distinct_and_below_the_ephemeral_range(tmp_path: Path) -> None:
    ports = Ports.choose(Home(tmp_path), {}, EVERYTHING)
    found = numbers(ports)
    assert len(found) == len(EVERYTHING) - 1 + RAY_PORTS
    assert all(FIRST <= port <= LAST and is_free(port) for port in found)


def test_ports_are_the_same_the_next_time(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert Ports.choose(home, {}, EVERYTHING) == Ports.choose(home, {}, EVERYTHING)


def test_a_remembered_port_that_is_taken_is_replaced_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    before = Ports.choose(home, {}, EVERYTHING)
    with socket.create_server(("127.0.0.1", before.api)):
        after = Ports.choose(home, {}, EVERYTHING)
    assert after.api != before.api
    assert after.model_copy(update={"api": before.api}) == before


def test_one_taken_port_in_rays_range_moves_the_range(tmp_path: Path) -> None:
    home = Home(tmp_path)
    before = Ports.choose(home, {}, EVERYTHING)
    with socket.create_server(("", before.ray + 50)) as taken:
        after = Ports.choose(home, {}, EVERYTHING)
        assert taken.getsockname()[1] not in numbers(after)


def test_two_homes_do_not_want_the_same_ports(tmp_path: Path) -> None:
    one = Ports.choose(Home(tmp_path / "one"), {}, EVERYTHING)
    two = Ports.choose(Home(tmp_path / "two"), {}, EVERYTHING)
    if one.ray != two.ray:  # homes whose tags fall together are told apart by what is in use
        assert not numbers(one) & numbers(two)


def test_an_asked_for_port_in_use_is_a_conflict_that_names_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=rf"port {port} \(--api-port\) is in use by pid {os.getpid()}"):
            Ports.choose(Home(tmp_path), {"api": port}, {"api"})
        assert Ports.choose(Home(tmp_path), {"api": port}, {"temporal"}).api == port, "it is not needed"


def test_a_damaged_memory_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("{")
    assert is_free(Ports.choose(Home(tmp_path), {}, EVERYTHING).api)
