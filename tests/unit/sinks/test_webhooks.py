"""Incidents reach whoever listens: signed, again and again until they are taken, and never silently lost."""

import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ratchet.sinks.news import Alarm
from ratchet.sinks.webhooks import SIGNATURE, UNDELIVERED, WebhookSink
from ratchet.spec.faults import Fault, FaultKind
from ratchet.spec.home import Home

SECRET = "correct horse battery staple"
Until = Callable[[Callable[[], Any]], Awaitable[None]]


class Receiver:
    """Somebody's HTTP server, which can be killed and started again on its port."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.status = 204
        self.hang_up = False
        self._port = 0
        self.start()

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                said = dict(part.split("=", 1) for part in self.headers[SIGNATURE].split(","))
                digest = hmac.new(
                    SECRET.encode(), f"{said['t']}.".encode() + body, hashlib.sha256
                ).hexdigest()
                assert hmac.compare_digest(digest, said["v1"])
                receiver.keys.append(self.headers["Idempotency-Key"])
                if receiver.status < 300:
                    receiver.taken.append(json.loads(body))
                if receiver.hang_up:  # taken, but nobody hears of it
                    self.connection.close()
                    return
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    def kill(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.kill()


@pytest.fixture
def hook(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("HOOK_KEY", SECRET)
    return {"webhooks": [{"url": receiver.url, "secret": {"env": "HOOK_KEY"}}]}


async def test_incidents_and_the_failure_of_a_run_are_told(
    runs: Any, receiver: Receiver, hook: Any, following: Any, until: Until
) -> None:
    runs.register("r", notify=hook)
    runs.train("r", 1, 3)
    runs.incident("r", "recovery/2", lost="cluster")
    runs.end("r", fault=Fault(kind=FaultKind.CLUSTER_LOST, message="no head came back"))
    async with following():
        await until(lambda: (kept := runs.positions.get("r", "webhook-0")) and kept.ended)
    first, last = receiver.taken
    assert (first["id"], first["type"], first["data"]["lost"]) == ("r/1/recovery/2", "incident", "cluster")
    assert (last["type"], last["run"], last["message"]) == ("failed", "r", "no head came back")


async def test_a_receiver_that_was_killed_gets_what_it_missed(
    runs: Any, receiver: Receiver, hook: Any, following: Any, until: Until
) -> None:
    runs.register("r", notify=hook)
    runs.incident("r", "a")
    async with following() as follower:
        await until(lambda: receiver.taken)
        receiver.kill()
        runs.incident("r", "b")
        runs.incident("r", "c")
        await until(lambda: follower.failures["webhook"] > 1)
        receiver.start()
        await until(lambda: follower.written()["webhook"] == 3)
    assert [message["id"] for message in receiver.taken] == ["r/1/a", "r/1/b", "r/1/c"]


async def test_what_may_have_been_taken_comes_again_under_the_same_key(
    runs: Any, receiver: Receiver, hook: Any, following: Any, until: Until
) -> None:
    receiver.hang_up = True
    runs.register("r", notify=hook)
    runs.incident("r", "a")
    async with following():
        await until(lambda: len(receiver.keys) > 1)
        receiver.hang_up = False
        await until(lambda: runs.positions.get("r", "webhook-0").after > 1)
    assert set(receiver.keys) == {"r/1/a"}


async def test_a_webhook_that_is_down_holds_up_nobody_else(
    runs: Any, receiver: Receiver, hook: Any, home: Home, following: Any, until: Until
) -> None:
    receiver.kill()
    runs.register("r", notify=hook, metrics={"tensorboard": {}})
    runs.incident("r", "a")
    runs.train("r", 1, 2)
    async with following() as follower:
        await until(lambda: follower.failures["webhook"])
        runs.train("r", 3, 3)
        await until(lambda: follower.behind()["r", "tensorboard"] == 0)
        assert follower.behind()["r", "webhook-0"] > 0
    receiver.start()


def test_what_is_given_up_is_kept_and_shouted(
    receiver: Receiver, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 503
    sink = WebhookSink("webhook 0 of r", receiver.url, SECRET, home.sinks / "r", patience=0.0)
    alarm = Alarm("r/1/a", "incident", "r", 1, 0.0, "trainer: it was killed", {})
    with caplog.at_level(logging.ERROR):
        sink.write([alarm])
    assert "r/1/a is UNDELIVERED" in caplog.text
    kept = json.loads((home.sinks / "r" / UNDELIVERED).read_text())
    assert (kept["message"]["id"], kept["why"]) == ("r/1/a", "it answered 503")
    assert sink.given_up == 1


async def test_a_secret_that_is_not_there_is_named_and_waited_for(
    runs: Any,
    receiver: Receiver,
    hook: Any,
    following: Any,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("HOOK_KEY")
    runs.register("r", notify=hook)
    runs.incident("r", "a")
    async with following() as follower:
        await until(lambda: follower.failures["webhook"])
        assert "notify.webhooks.0.secret: environment variable HOOK_KEY is empty, or not there" in caplog.text
        monkeypatch.setenv("HOOK_KEY", SECRET)
        await until(lambda: receiver.taken)


def test_no_secret_is_in_the_store(runs: Any, hook: Any, home: Home) -> None:
    runs.register("r", notify=hook)
    runs.store.close()
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in home.root.glob("store.db*"))
