"""A server that dies or freezes: nothing waits for ever, nothing is lost, nothing comes twice."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable
from ratchet.store import Store
from workers.testing.postgres import PostgresServer

AWAY_S = 4.0
"""Longer than a statement may take; `python -m benchmarks.outage` has it away for 20 s under a whole run."""
SOON_S = 1.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, to be killed."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def away(server: PostgresServer, told) -> Iterator[Store]:
    store = Store(server.url())
    store.migrate()
    store.register_run(told.register("r"), at=0.0, code={})
    yield store
    store.close()


def recorded(store: Store, request, *, longest: list[float]) -> None:
    """What Temporal does: ask again until it is written."""
    while True:
        begun = time.monotonic()
        try:
            return store.record(request)
        except Unavailable:
            longest.append(time.monotonic() - begun)
            time.sleep(0.1)


def test_a_server_that_was_killed_gets_everything_once(server, away, told):
    written, stop, waits = [], threading.Event(), [0.0]

    def run() -> None:
        while not stop.is_set():
            step = len(written) + 1
            recorded(away, told.record(told.step(step), told.event(f"e{step}")), longest=waits)
            written.append(step)

    training = threading.Thread(target=run)
    training.start()
    while len(written) < 20:
        time.sleep(0.01)
    server.kill()
    time.sleep(AWAY_S)
    before = len(written)
    server.start()
    give_up = time.monotonic() + 10.0
    while len(written) < before + 20 and time.monotonic() < give_up:
        time.sleep(0.01)
    stop.set()
    training.join(10.0)
    assert len(written) >= before + 20
    assert max(waits) < deadlines.RECORD
    assert [step.step for step in away.steps("r")] == written
    assert [event.key for event in away.events("r", limit=10_000)] == [f"e{step}" for step in written]
    assert [notice.id for notice in away.notices("r", after=0, limit=100_000)] == list(
        range(1, 2 * len(written) + 2)
    )


def test_a_restarted_server_is_noticed_before_anything_is_asked_of_it(server, away, told):
    server.kill()
    with pytest.raises(Unavailable, match="connection to server"):
        away.record(told.record(told.step(1)))
    server.start()
    assert away.get_run("r") is not None
    server.kill()
    server.start()
    away.record(told.record(told.step(1)))
    assert [step.step for step in away.steps("r")] == [1]


def test_a_frozen_server_is_given_up(server, told):
    store = Store(server.url(), busy_s=SOON_S)
    store.migrate()
    store.register_run(told.register("r"), at=0.0, code={})
    backends = server.backends()
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(Unavailable):
        store.get_run("r")
    assert time.monotonic() - begun < SOON_S + deadlines.STORE_SILENT + 1.0
    for pid in backends:
        os.kill(pid, signal.SIGCONT)
    assert store.get_run("r") is not None
    store.close()
