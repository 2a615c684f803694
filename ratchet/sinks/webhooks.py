"""Webhooks: incidents as signed messages, each posted until it is taken, or for so long and no longer.

A message may come twice (its sender was killed before it had written down the answer); `Idempotency-Key` then
is the same. One that is given up is written down beside the run's positions, and logged as an error.
"""

import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx

from ratchet import __version__
from ratchet.sinks.follow import SinkState
from ratchet.sinks.news import Alarm, News
from ratchet.spec import deadlines
from ratchet.spec.faults import Unavailable

logger = logging.getLogger(__name__)

SIGNATURE = "Ratchet-Signature"
UNDELIVERED = "undelivered.jsonl"


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=<epoch seconds>,v1=<hex>`: an HMAC with SHA-256 over `<t>.<body>`. Receivers compute it again,
    compare it in constant time, and refuse an old t."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class WebhookSink:
    takes_back = False
    tells: tuple[type[News], ...] = (Alarm,)
    at_once = 1
    lasts_after_close = False

    def __init__(
        self, name: str, url: str, secret: str, folder: Path, *, patience: float = deadlines.WEBHOOK
    ) -> None:
        """`folder`: where undelivered messages are written down; `patience`: seconds of tries."""
        self._name, self._url, self._secret, self._folder = name, url, secret, folder
        self._patience = patience
        self._away_since: float | None = None
        self.given_up = 0

    def open(self, state: SinkState) -> bool:  # noqa: ARG002
        return True

    def write(self, news: Sequence[News]) -> None:
        for item in news:
            if isinstance(item, Alarm):
                self._deliver(item)

    def commit(self) -> SinkState:
        return {}

    def close(self, *, ended: bool) -> SinkState:  # noqa: ARG002
        return {}

    def _deliver(self, alarm: Alarm) -> None:
        """Post it once. Raises Unavailable if it is to be tried again."""
        body = json.dumps(message(alarm), separators=(",", ":")).encode()
        problem = self._post(alarm, body)
        if problem is None:
            self._away_since = None
            return
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since < self._patience:
            raise Unavailable(f"{self._name} did not take {alarm.id}: {problem}; it will come again")
        self._give_up(alarm, problem)

    def _post(self, alarm: Alarm, body: bytes) -> str | None:
        """What went wrong, if something did. Not the URL: it may be a secret."""
        at = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"ratchet/{__version__}",
            "Idempotency-Key": alarm.id,
            SIGNATURE: signature(self._secret, at, body),
        }
        try:
            answer = httpx.post(self._url, content=body, headers=headers, timeout=deadlines.SINK_CALL)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"it cannot be reached ({type(error).__name__})"
        return None if answer.is_success else f"it answered {answer.status_code}"

    def _give_up(self, alarm: Alarm, problem: str) -> None:
        self.given_up += 1
        entry = {
            "webhook": self._name,
            "given_up_at": time.time(),
            "why": problem,
            "message": message(alarm),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / UNDELIVERED).open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        logger.error(
            "%s is given up (%s): %s is UNDELIVERED, and kept in %s",
            self._name,
            problem,
            alarm.id,
            self._folder / UNDELIVERED,
        )


def message(alarm: Alarm) -> dict[str, object]:
    """What is posted."""
    return {
        "id": alarm.id,
        "type": alarm.kind,
        "run": alarm.run,
        "incarnation": alarm.incarnation,
        "at": datetime.fromtimestamp(alarm.at, UTC).isoformat(),
        "message": alarm.message,
        "data": alarm.data,
    }
