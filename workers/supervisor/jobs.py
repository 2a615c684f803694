"""A client of Ray's Jobs REST API, which the dashboard of a Ray cluster serves."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from ratchet.spec.faults import InfraFault, Unavailable

ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_ANSWER_WITHIN = 10.0
"""Submitting a job takes the dashboard seconds."""


class JobsClient:
    """Every method raises Unavailable when the dashboard does not answer, InfraFault when it refuses."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # No proxies: a cluster is reached directly, as its drivers would.
        self._http = httpx.AsyncClient(
            base_url=self.url, timeout=_ANSWER_WITHIN, headers=_credentials(), trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def session(self) -> str:
        """The cluster's own name for this life of it."""
        return (await self._ask("GET", "/api/version"))["session_name"]

    async def submit(self, job: str, entrypoint: str, runtime_env: dict[str, Any]) -> None:
        body = {"submission_id": job, "entrypoint": entrypoint, "runtime_env": runtime_env}
        await self._ask("POST", "/api/jobs/", json=body)

    async def status(self, job: str) -> tuple[str, str]:
        """PENDING, RUNNING or one of ENDED, and what Ray says to it."""
        answer = await self._ask("GET", f"/api/jobs/{job}")
        return answer["status"], answer["message"] or ""

    async def stop(self, job: str) -> None:
        """Ask it to end: SIGTERM, and SIGKILL three seconds later."""
        await self._ask("POST", f"/api/jobs/{job}/stop")

    async def unfinished(self, name: str) -> Sequence[str]:
        """Jobs called `name` and eight hex digits that have not ended."""
        pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{8}}")
        return [
            job["submission_id"]
            for job in await self._ask("GET", "/api/jobs/")
            if pattern.fullmatch(job["submission_id"] or "") and job["status"] not in ENDED
        ]

    async def _ask(self, method: str, path: str, json: object = None) -> Any:
        try:
            answer = await self._http.request(method, path, json=json)
        except httpx.HTTPError as error:
            raise Unavailable(f"the Ray dashboard at {self.url} does not answer: {error!r}") from error
        if answer.status_code in (401, 403):
            raise InfraFault(
                f"the Ray dashboard at {self.url} wants a token: set RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH"
            )
        if answer.is_error:
            last = (answer.text.strip().splitlines() or ["no reason given"])[-1]
            raise InfraFault(f"the Ray dashboard at {self.url} refuses {method} {path}: {last}")
        return answer.json()


def _credentials() -> dict[str, str]:
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN")
    if not token and (path := os.environ.get("RAY_AUTH_TOKEN_PATH")):
        token = Path(path).read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}
