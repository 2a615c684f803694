"""Lines with an event loop: the same answers, faults and ends as those without (see test_lines.py)."""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from ratchet.data_plane.errors import BadRequest, DataPlaneUnavailable
from ratchet.spec.faults import Unavailable
from workers.actors.async_lines import AsyncLine
from workers.actors.lines import Endpoint, LineServer

SOON = 5.0


def _serve(told: "Connection[Endpoint, Any]") -> None:
    said: list[object] = []

    def refuse() -> None:
        raise BadRequest("not yours")

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)

    methods = {
        "echo": lambda value: value,
        "say": said.append,
        "said": lambda: said,
        "refuse": refuse,
        "stop": stop,
    }
    told.send(LineServer("127.0.0.1", {"lane": methods}, at_once={"lane"}).endpoint)
    signal.pause()


@pytest.fixture
def server() -> Iterator[tuple[Endpoint, int]]:
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(its,), daemon=True)
    process.start()
    endpoint: Endpoint = mine.recv()
    yield endpoint, endpoint.pid
    process.kill()
    process.join()


@pytest.fixture
def line(server: tuple[Endpoint, int]) -> Iterator[AsyncLine]:
    line = AsyncLine(server[0], "plane", "lane", lost=DataPlaneUnavailable)
    yield line
    line.close()


async def test_what_is_asked_is_answered_in_order_whatever_its_size(line: AsyncLine) -> None:
    sizes = [0, 1, 10_000_000, 3]
    answers = await asyncio.gather(
        *(line.call("echo", np.full(size, size % 7, np.uint8), deadline=SOON) for size in sizes)
    )
    assert [len(answer) for answer in answers] == sizes


async def test_what_was_posted_is_done_before_the_next_call(line: AsyncLine) -> None:
    for word in ("a", "b"):
        await line.post("say", word, deadline=SOON)
    assert await line.call("said", deadline=SOON) == ["a", "b"]


async def test_a_posted_fault_is_the_next_calls_and_the_line_goes_on(line: AsyncLine) -> None:
    await line.post("refuse", deadline=SOON)
    with pytest.raises(BadRequest, match="not yours") as fault:
        await line.call("echo", 1, deadline=SOON)
    assert fault.value.role == "plane"
    assert await line.call("echo", 2, deadline=SOON) == 2


async def test_one_that_dies_is_lost_at_once(line: AsyncLine, server: tuple[Endpoint, int]) -> None:
    await line.call("echo", 1, deadline=SOON)
    os.kill(server[1], signal.SIGKILL)
    with pytest.raises(DataPlaneUnavailable, match="the plane is gone"):
        await line.call("echo", 1, deadline=SOON)


async def test_one_that_is_silent_is_unavailable_after_the_deadline(line: AsyncLine) -> None:
    with pytest.raises(Unavailable, match="did not answer stop within 1 s"):
        await line.call("stop", deadline=1.0)
