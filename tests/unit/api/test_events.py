"""Events over reconnects and deaths of the API: every one once, in order."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

import ratchet
from api.app import create_app
from ratchet.spec.control import EventEntry, RecordRequest
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.state import RunPhase
from ratchet.store import Store

ROOT = Path(ratchet.__file__).parents[1]
EVENTS = 300
RECONNECTS = 50


def noted(run: str, number: int) -> RecordRequest:
    entry = EventEntry(key=f"note/{number}", topic="note", message=f"note {number}")
    return RecordRequest(run=run, incarnation=1, at=1000.0 + number, entries=(entry,))


def parse(text: str) -> list[dict[str, Any]]:
    """Events of a stream's text, the last one only if it is whole."""
    found = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            found.append({**json.loads(fields["data"]), "event": fields["event"], "last_id": fields["id"]})
    return found


@pytest_asyncio.fixture
async def api(home: Home) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(home)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


async def test_a_run_is_told_from_its_start_and_from_any_event_on(
    api: httpx.AsyncClient, on_record: Any
) -> None:
    on_record.run("r", RunPhase.COMPLETED, steps=3)
    on_record.run("other", RunPhase.RUNNING, steps=1)
    on_record.incident("r", 1)
    answer = await api.get("/v1/runs/r/events", params={"seconds": 0})
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = parse(answer.text)
    assert {event["run"] for event in told} == {"r"}
    assert [event["event"] for event in told] == [
        "registered", "evaluation", "step", "step", "step", "checkpoint", "evaluation", "state", "event",
    ]  # fmt: skip
    assert [event["id"] for event in told] == sorted({event["id"] for event in told})
    assert told[2]["data"]["reward_mean"] == pytest.approx(0.5)
    assert told[7]["data"] == {"phase": "completed", "step": 3, "fault": None}
    header = {"Last-Event-ID": told[6]["last_id"]}
    later = parse((await api.get("/v1/runs/r/events?seconds=0&after=0", headers=header)).text)
    assert later == told[7:]


async def test_what_is_recorded_twice_is_told_once_and_what_is_refused_never(
    api: httpx.AsyncClient, on_record: Any
) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=2)
    before = on_record.store.newest_notice()
    on_record.run("r", RunPhase.RUNNING, steps=2)
    assert on_record.store.newest_notice() == before
    with pytest.raises(Exception, match="not in the store"):
        on_record.store.record(noted("nobody", 1))
    assert on_record.store.newest_notice() == before
    assert [notice.id for notice in on_record.store.notices(after=0)] == list(range(1, before + 1))


async def test_all_runs_are_told_from_now_on_as_it_happens(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("old", RunPhase.RUNNING, steps=1)
    stream = asyncio.create_task(api.get("/v1/events", params={"seconds": 2.0}))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(on_record.store.record, noted("old", 7))
    told = parse((await stream).text)
    assert [(event["run"], event["data"]["key"]) for event in told] == [("old", "note/7")]


async def test_an_id_that_is_none_is_refused(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING)
    for wrong in ("-1", "x", str(2**70)):
        answer = await api.get("/v1/runs/r/events?seconds=0", headers={"Last-Event-ID": wrong})
        assert answer.status_code == 422


class KillableApi:
    """The API as a process, always on the same port."""

    def __init__(self, home: Home) -> None:
        self._home = home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "api", "--port", str(self.port)]
        environment = {**os.environ, HOME_VARIABLE: str(self._home.root)}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(10)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)


@pytest.fixture
def process(home: Home) -> Iterator[KillableApi]:
    api = KillableApi(home)
    api.start()
    yield api
    api.kill()


@pytest.mark.integration
def test_an_open_stream_does_not_hold_up_a_shutdown(process: KillableApi, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=1)
    url = f"http://127.0.0.1:{process.port}/v1/runs/r/events"
    give_up = time.monotonic() + 30
    while True:
        try:
            with httpx.stream("GET", url, timeout=15) as answer:
                parts = answer.iter_text()
                assert "registered" in next(parts) + next(parts)
                asked = time.monotonic()
                assert process.stop() == -signal.SIGTERM
                assert time.monotonic() - asked < 3.0
                assert [part for part in parts if "data" in part] == []  # the stream has an end
                return
        except httpx.ConnectError:
            assert time.monotonic() < give_up
            time.sleep(0.1)


def writing(store: Store, until: threading.Event) -> Callable[[], None]:
    """A run that goes on, whoever looks."""

    def write() -> None:
        for number in range(EVENTS):
            store.record(noted("r", number))
            until.wait(0.02)

    return write


@pytest.mark.integration
@pytest.mark.slow
def test_50_reconnects_and_two_killed_apis_lose_and_double_nothing(
    process: KillableApi, on_record: Any
) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=1)
    stopped = threading.Event()
    writer = threading.Thread(target=writing(on_record.store, stopped))
    writer.start()
    url = f"http://127.0.0.1:{process.port}/v1/runs/r/events"
    seen: list[dict[str, Any]] = []
    connections = kills = 0
    give_up = time.monotonic() + 90
    try:
        while len([one for one in seen if one["event"] == "event"]) < EVENTS or connections < RECONNECTS:
            assert time.monotonic() < give_up, (len(seen), connections, kills)
            if kills < 2 and len(seen) > EVENTS * (kills + 1) / 3:
                process.kill()
                process.start()
                kills += 1
            headers = {"Last-Event-ID": seen[-1]["last_id"]} if seen else {}
            text, enough = "", 1 + len(seen) % 9
            try:
                with httpx.stream("GET", url, headers=headers, params={"seconds": 1}, timeout=10) as answer:
                    connections += 1
                    for part in answer.iter_text():
                        text += part
                        if len(parse(text)) >= enough:
                            break  # hang up, whatever else was under way
            except httpx.TransportError:
                time.sleep(0.1)
            seen += parse(text)[:enough]
    finally:
        stopped.set()
        writer.join()
    assert (connections >= RECONNECTS, kills) == (True, 2)
    assert [one["data"]["key"] for one in seen if one["event"] == "event"] == [
        f"note/{n}" for n in range(EVENTS)
    ]
    assert [one["id"] for one in seen] == [notice.id for notice in on_record.store.notices("r", after=0)]
