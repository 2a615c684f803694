"""Engines that share a device: one at a time, whoever dies."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from ratchet.sessions.turns import Turns
from ratchet.spec.faults import SpecError, Unavailable


class Engine:
    def __init__(self) -> None:
        self.there = False
        self.moves: list[str] = []

    def enter(self) -> None:
        self.there = True
        self.moves.append("enter")

    def leave(self) -> None:
        self.there = False
        self.moves.append("leave")


def test_an_engine_is_on_its_device_in_its_turn_only(tmp_path: Path) -> None:
    engine = Engine()
    turns = Turns(engine, "trainer", tmp_path / "session" / "turn")
    with turns.taken():
        assert engine.there
    assert not engine.there
    with pytest.raises(ZeroDivisionError), turns.taken():
        raise ZeroDivisionError
    assert engine.moves == ["enter", "leave"] * 2


def test_an_engine_with_a_device_of_its_own_never_moves() -> None:
    engine = Engine()
    with Turns(engine, "trainer", None).taken():
        pass
    assert engine.moves == []


def test_who_does_not_get_a_turn_hears_who_has_it(tmp_path: Path) -> None:
    lock = tmp_path / "turn"
    waiting = Engine()
    with Turns(Engine(), "trainer", lock).taken():
        with (
            pytest.raises(
                Unavailable, match=rf"the generator waited .*: trainer \(pid {os.getpid()}\) has it"
            ),
            Turns(waiting, "generator", lock).taken(within=0.1),
        ):
            pass
    assert waiting.moves == []


def _take_for_ever(lock: Path, taken: "multiprocessing.synchronize.Event") -> None:
    with Turns(Engine(), "trainer", lock).taken():
        taken.set()
        signal.pause()


def test_one_that_is_killed_in_its_turn_leaves_it_to_the_other(tmp_path: Path) -> None:
    lock, context = tmp_path / "turn", multiprocessing.get_context("spawn")
    taken = context.Event()
    holder = context.Process(target=_take_for_ever, args=(lock, taken))
    holder.start()
    assert taken.wait(30)
    holder.kill()
    with Turns(Engine(), "generator", lock).taken(within=10):
        pass
    holder.join()


def test_an_engine_that_cannot_leave_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has no enter and leave: set placement"):
        Turns(object(), "trainer", tmp_path / "turn")  # pyright: ignore[reportArgumentType]
