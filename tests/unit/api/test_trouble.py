"""What the API answers when something behind it is broken: a problem, in time, and when to come back."""

import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from api.app import create_app
from ratchet.spec import deadlines
from ratchet.spec.home import Home
from ratchet.spec.stack import StackState
from ratchet.spec.state import RunPhase

SOON_S = 0.3
SPEC: dict[str, Any] = {
    "name": "tiny-addition",
    "policy": {"model": "tiny"},
    "generation": {"max_new_tokens": 5},
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 4},
    "environment": {"name": "arithmetic"},
}


@pytest.fixture
def silent_temporal(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that takes every connection and never says a word, as a frozen one does."""
    for name in ("UPDATE", "LIVE_STATUS"):
        monkeypatch.setattr(deadlines, name, SOON_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        stack = StackState(supervisor_pid=1, temporal_address=address, namespace="ratchet")
        home.root.mkdir(exist_ok=True)
        home.state_file.write_text(stack.model_dump_json())
        yield


@pytest_asyncio.fixture
async def api(home: Home) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(home)

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError("of no concern to whoever asks")

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def problem_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["title"]
    return problem


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/runs", {"spec": SPEC}),
        ("/v1/runs/on/pause", None),
        ("/v1/runs/on/resume", None),
        ("/v1/runs/on/stop", None),
        ("/v1/runs/on/checkpoint", None),
        ("/v1/runs/on/extend", {"max_num_steps": 9}),
        ("/v1/runs/on/hyperparameters", {"values": {"policy.optimizer.lr": 1e-6}}),
    ],
)
async def test_a_temporal_that_says_nothing_is_given_up_in_time(
    silent_temporal: None, api: httpx.AsyncClient, on_record: Any, path: str, body: object
) -> None:
    on_record.run("on", RunPhase.RUNNING, steps=1)
    answer = await api.post(path, json=body)
    problem = problem_of(answer)
    assert (problem["status"], problem["type"]) == (503, "urn:ratchet:problem:unavailable")
    assert int(answer.headers["retry-after"]) > 0


async def test_what_is_on_record_is_shown_all_the_same(
    silent_temporal: None, api: httpx.AsyncClient, on_record: Any
) -> None:
    on_record.run("on", RunPhase.RUNNING, steps=1)
    shown = await api.get("/v1/runs/on")
    assert (shown.status_code, shown.json()["live"], shown.json()["step"]) == (200, False, 1)
    assert (await api.get("/v1/runs")).json()["runs"][0]["phase"] == "running"
    assert (await api.get("/readyz")).status_code == 503


async def test_a_store_that_is_gone_is_a_problem_too(api: httpx.AsyncClient, home: Home) -> None:
    for file in home.root.glob("store.db*"):
        file.write_bytes(b"no database " * 1000)
    answer = await api.get("/v1/runs/any")
    assert (problem_of(answer)["status"], answer.headers["retry-after"]) == (503, "2")


async def test_a_defect_says_where_to_look_and_nothing_else(api: httpx.AsyncClient) -> None:
    problem = problem_of(await api.get("/broken"))
    assert (problem["status"], problem["type"]) == (500, "urn:ratchet:problem:defect")
    assert "ratchet logs api" in problem["detail"]
    assert "concern" not in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/rums", 404),
        ("GET", "/v1/runs/nobody", 404),
        ("PATCH", "/v1/runs", 405),
        ("GET", "/v1/runs?limit=0", 422),
        ("GET", "/v1/runs?phase=asleep", 422),
        ("POST", "/v1/runs", 422),
    ],
)
async def test_every_refusal_is_a_problem(
    api: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    problem = problem_of(await api.request(method, path))
    assert problem["status"] == status
    assert problem["instance"] == path.partition("?")[0]
