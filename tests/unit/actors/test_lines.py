"""Lines to actors: what is asked is answered, and whoever does not answer any more is named."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from ratchet.data_plane.errors import NotReady
from ratchet.spec import deadlines
from ratchet.spec.faults import ActorLost, InfraFault, RatchetError, Unavailable
from workers.actors.lines import Endpoint, Line, LineServer

SOON = 5.0


class _Engine:
    """Something with two lanes."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._threads: set[int] = set()

    def double(self, array: Any) -> Any:
        return array * 2

    def slow(self, seconds: float) -> list[str]:
        self._threads.add(threading.get_ident())
        time.sleep(seconds)
        self.done.append("slow")
        return self.done

    def refuse(self) -> None:
        raise NotReady("group 7 is not there")

    def stumble(self) -> None:
        raise KeyError("a defect")

    def exhaust(self) -> None:
        raise MemoryError("8 GiB")

    def threads(self) -> int:
        self._threads.add(threading.get_ident())
        return len(self._threads)


def _serve(told: "Connection[Endpoint, Any]") -> None:
    engine = _Engine()
    work = {
        name: getattr(engine, name) for name in ("double", "slow", "refuse", "stumble", "exhaust", "threads")
    }
    server = LineServer("127.0.0.1", {"engine": work, "control": {"done": lambda: engine.done}})
    told.send(server.endpoint)
    threading.Event().wait()


@pytest.fixture
def actor() -> Iterator[Endpoint]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(30)
    yield ours.recv()
    process.kill()
    process.join()


def test_an_answer_comes_back_and_an_error_keeps_its_type_and_names_its_role(actor: Endpoint) -> None:
    line = Line(actor, "trainer", "engine")
    large = np.arange(1_000_000, dtype=np.int64)  # far past one write
    assert np.array_equal(line.call("double", large, deadline=SOON), large * 2)
    with pytest.raises(NotReady, match="group 7") as refused:
        line.call("refuse", deadline=SOON)
    assert refused.value.role == "trainer"
    with pytest.raises(RatchetError, match="KeyError: 'a defect'"):
        line.call("stumble", deadline=SOON)
    with pytest.raises(InfraFault, match="out of memory in exhaust: 8 GiB"):
        line.call("exhaust", deadline=SOON)
    assert line.call("double", 2, deadline=SOON) == 4


def test_lanes_go_on_beside_each_other_and_one_lane_has_one_thread_whoever_calls(actor: Endpoint) -> None:
    engine, control = Line(actor, "trainer", "engine"), Line(actor, "trainer", "control")
    caller = threading.Thread(target=engine.call, args=("slow", 1.0), kwargs={"deadline": SOON})
    caller.start()
    assert control.call("done", deadline=SOON) == []
    caller.join()
    assert control.call("done", deadline=SOON) == ["slow"]
    assert Line(actor, "trainer", "engine").call("threads", deadline=SOON) == 1


def test_a_killed_actor_is_lost_at_once_and_stays_lost(actor: Endpoint) -> None:
    line = Line(actor, "generator", "engine")
    line.call("double", 1, deadline=SOON)
    killer = threading.Timer(0.3, os.kill, (actor.pid, signal.SIGKILL))
    killer.start()
    began = time.monotonic()
    with pytest.raises(ActorLost, match="the generator is gone") as lost:
        line.call("slow", 60.0, deadline=60)
    assert time.monotonic() - began < SOON
    assert lost.value.role == "generator"
    with pytest.raises(ActorLost):
        line.call("double", 1, deadline=SOON)


def test_a_late_answer_is_not_taken_for_the_next_calls(actor: Endpoint) -> None:
    line = Line(actor, "trainer", "engine")
    with pytest.raises(Unavailable, match="did not answer slow within"):
        line.call("slow", 0.5, deadline=0.1)
    assert line.call("double", 21, deadline=SOON) == 42
    assert Line(actor, "trainer", "control").call("done", deadline=SOON) == ["slow"], "it was carried out"


def test_a_cut_line_frees_its_caller_though_the_actor_is_frozen(actor: Endpoint) -> None:
    line = Line(actor, "data-plane", "engine", lost=Unavailable)
    line.call("double", 1, deadline=SOON)
    os.kill(actor.pid, signal.SIGSTOP)
    try:
        threading.Timer(0.3, line.cut, ("it was silent for 10 s",)).start()
        with pytest.raises(Unavailable, match="it was silent for 10 s"):
            line.call("double", 1, deadline=60)
        with pytest.raises(Unavailable, match="it was silent for 10 s"):
            line.call("double", 1, deadline=60)
    finally:
        os.kill(actor.pid, signal.SIGCONT)


def test_a_frozen_actor_keeps_no_new_caller_waiting_for_ever(
    actor: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "ENGINE_SILENT", 1.0)
    os.kill(actor.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ActorLost):
            Line(actor, "trainer", "engine").call("double", 1, deadline=SOON)
    finally:
        os.kill(actor.pid, signal.SIGCONT)


def test_a_posted_call_is_looked_at_by_the_next(actor: Endpoint) -> None:
    line = Line(actor, "data-plane", "engine")
    line.post("double", 1, deadline=SOON)
    assert line.call("double", 5, deadline=SOON) == 10
    line.post("refuse", deadline=SOON)
    with pytest.raises(NotReady):
        line.call("double", 1, deadline=SOON)


def test_without_the_key_nobody_gets_in(actor: Endpoint) -> None:
    stranger = Line(replace(actor, key=b"guess"), "trainer", "engine")
    with pytest.raises(ActorLost):
        stranger.call("double", 1, deadline=SOON)
    assert Line(actor, "trainer", "engine").call("double", 1, deadline=SOON) == 2
