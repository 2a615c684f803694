"""Who may ask for what, what is written down of it, and which files of the server a spec may name."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import ratchet
from api.app import create_app
from api.pace import Pace
from api.problems import TooManyLaunches
from api.settings import ApiSettings
from ratchet.spec.access import Role
from ratchet.spec.home import HOME_VARIABLE, Home
from ratchet.spec.stack import StackState
from ratchet.spec.state import RunPhase
from ratchet.store import Store, Tokens

ROOT = Path(ratchet.__file__).parents[1]

SPEC: dict[str, Any] = {
    "name": "tiny-addition",
    "policy": {"model": "tiny"},
    "generation": {"max_new_tokens": 5},
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 4},
    "environment": {"name": "arithmetic"},
}

Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture(autouse=True)
def _stack_without_temporal(home: Home) -> None:
    home.root.mkdir(exist_ok=True)
    stack = StackState(supervisor_pid=1, temporal_address="127.0.0.1:1", namespace="ratchet")
    home.state_file.write_text(stack.model_dump_json())


@asynccontextmanager
async def serving(home: Home, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(home, ApiSettings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def token_of(store: Store, role: Role) -> str:
    return Tokens(store).create(f"a {role}", role, by="test", at=1.0)[1]


async def test_beyond_loopback_everybody_needs_a_token(home: Home, on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED)
    good = token_of(on_record.store, Role.VIEWER)
    async with serving(home, wide=True) as api:
        for headers in (
            {},
            bearer(""),
            bearer("ratchet_00000000_" + "x" * 43),
            bearer(good[:-1] + ("A" if good[-1] != "A" else "B")),
            {"Authorization": f"Basic {good}"},
        ):
            answer = await api.get("/v1/runs/r", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.headers["content-type"] == "application/problem+json"
        assert (await api.get("/v1/nothing")).status_code == 401  # not even what there is
        assert (await api.get("/healthz")).status_code == 200
        other_name = {**bearer(good), "host": "ratchet.example.org"}
        assert (await api.get("/v1/runs/r", headers=other_name)).status_code == 200


@pytest.mark.parametrize(
    ("role", "may"),
    [
        (Role.VIEWER, {"look"}),
        (Role.OPERATOR, {"look", "steer"}),
        (Role.ADMIN, {"look", "steer", "rebuild", "tokens", "audit"}),
    ],
)
async def test_a_role_may_what_it_may(home: Home, on_record: Any, role: Role, may: set[str]) -> None:
    on_record.run("r", RunPhase.COMPLETED)
    calls = {
        "look": ("GET", "/v1/runs/r/steps"),
        "steer": ("POST", "/v1/runs/r/stop"),
        "rebuild": ("POST", "/v1/runs/r/rebuild/buffer"),
        "tokens": ("GET", "/v1/tokens"),
        "audit": ("GET", "/v1/audit"),
    }
    async with serving(home, wide=True) as api:
        headers = bearer(token_of(on_record.store, role))
        answers = {what: await api.request(*call, headers=headers) for what, call in calls.items()}
    assert {what for what, answer in answers.items() if answer.status_code != 403} == may


async def test_a_revoked_token_opens_nothing_at_once(home: Home, on_record: Any) -> None:
    async with serving(home, wide=True) as api:
        admin = bearer(token_of(on_record.store, Role.ADMIN))
        made = (await api.post("/v1/tokens", json={"name": "ci", "role": "operator"}, headers=admin)).json()
        assert (await api.get("/v1/runs", headers=bearer(made["token"]))).status_code == 200
        assert (await api.delete(f"/v1/tokens/{made['id']}", headers=admin)).json()["revoked_at"]
        assert (await api.get("/v1/runs", headers=bearer(made["token"]))).status_code == 401
        listed = (await api.get("/v1/tokens", headers=admin)).json()["tokens"]
        assert [(token["name"], token["revoked_at"] is None) for token in listed] == [
            ("a admin", True),
            ("ci", False),
        ]
        assert (await api.delete("/v1/tokens/00000000", headers=admin)).status_code == 404


async def test_a_token_is_nowhere_in_the_database(home: Home, on_record: Any) -> None:
    token = token_of(on_record.store, Role.ADMIN)
    on_record.store.close()
    secret = token.split("_", 2)[2].encode()
    assert all(secret not in file.read_bytes() for file in home.root.iterdir() if file.is_file())


async def test_every_call_that_may_change_something_is_audited(home: Home, on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED)
    viewer = token_of(on_record.store, Role.VIEWER)
    async with serving(home) as api:
        await api.get("/v1/runs/r")
        await api.post("/v1/runs/r/stop")
        await api.post("/v1/runs/r/stop", headers=bearer(viewer))
        await api.post("/v1/runs", json={"spec": {}})
        await api.post("/v1/nothing")
        first = (await api.get("/v1/audit?limit=3")).json()
        rest = (await api.get("/v1/audit", params={"cursor": first["next_cursor"]})).json()
    calls = [*first["calls"], *rest["calls"]]
    assert [(call["who"].split(" ", 1)[-1], call["path"], call["status"]) for call in calls] == [
        ("loopback", "/v1/nothing", 404),
        ("loopback", "/v1/runs", 422),
        ("(a viewer)", "/v1/runs/r/stop", 403),
        ("loopback", "/v1/runs/r/stop", 409),
    ]


async def test_a_page_of_another_site_cannot_use_that_its_reader_sits_on_loopback(
    home: Home, on_record: Any
) -> None:
    on_record.run("r", RunPhase.COMPLETED)
    async with serving(home) as api:
        foreign = await api.post("/v1/runs/r/stop", headers={"Origin": "https://evil.example"})
        own = await api.post("/v1/runs/r/stop", headers={"Origin": "http://127.0.0.1"})
    assert (foreign.status_code, own.status_code) == (403, 409)


async def test_what_is_too_large_is_refused_whether_it_says_so_or_not(home: Home) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    async with serving(home, max_body=1000) as api:
        said = await api.post("/v1/runs", content=b" " * 1001)
        unsaid = await api.post("/v1/runs", content=trickle(), headers={"content-type": "application/json"})
    for answer in (said, unsaid):
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert "1000 bytes" in answer.json()["detail"]


async def test_launches_are_paced_and_say_when_to_come_back(home: Home) -> None:
    async with serving(home, launches_at_once=2, launches_per_second=0.5) as api:
        answers = [await api.post("/v1/runs", json={"spec": SPEC}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503, 503, 429]  # Temporal is away
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 2
    assert answers[-1].json()["type"] == "urn:ratchet:problem:too-many-launches"


def test_a_burst_comes_back_at_its_rate() -> None:
    now = [0.0]
    pace = Pace(3, 1.0, lambda: now[0])

    def allowed() -> int:
        count = 0
        while True:
            try:
                pace.take("ada")
            except TooManyLaunches:
                return count
            count += 1

    assert allowed() == 3
    pace.take("bob")  # has a burst of his own
    now[0] = 2.5
    assert allowed() == 2
    now[0] = 1000.0
    assert allowed() == 3


@pytest.mark.parametrize("path", ["..%2f..%2fetc", "%2e%2e", "a%00b", "A", "x" * 61])
async def test_a_run_id_is_no_path(home: Home, path: str) -> None:
    async with serving(home) as api:
        for end in ("", "/rollouts", "/events?seconds=0", "/checkpoints"):
            assert (await api.get(f"/v1/runs/{path}{end}")).status_code in (404, 422)


@pytest.mark.parametrize("path", ["/a\0b", "~nobody-at-all/x"])
@pytest.mark.parametrize("roots", [None, ()])
async def test_what_is_no_path_at_all_is_refused(
    home: Home, path: str, roots: tuple[Path, ...] | None
) -> None:
    environment = {"name": "dataset", "options": {"path": path}}
    async with serving(home, allowed_roots=roots) as api:
        for spec in ({**SPEC, "policy": {"model": path}}, {**SPEC, "environment": environment}):
            answer = await api.post("/v1/runs", json={"spec": spec})
            assert (answer.status_code, len(answer.json()["errors"])) == (422, 1)


def relative(path: Path) -> str:
    return os.path.relpath(path)


async def test_specs_name_files_below_allowed_roots_only(home: Home, tmp_path: Path) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    outside.mkdir()
    rows = json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n"
    for folder in (allowed, outside):
        (folder / "rows.jsonl").write_text(rows)
    (outside / "secret").write_text("hunter2\n")
    (allowed / "link.jsonl").symlink_to(outside / "secret")

    def with_rows(path: Path | str) -> dict[str, Any]:
        options = {"path": str(path)}
        return {
            **SPEC,
            "environment": {"name": "dataset", "options": options},
            "evaluation": {"num_problems": 0},
        }

    refused = [
        with_rows(outside / "rows.jsonl"),
        with_rows(outside / "secret"),
        with_rows(allowed / "link.jsonl"),
        with_rows(allowed / ".." / "outside" / "rows.jsonl"),
        with_rows(relative(outside / "rows.jsonl")),
        {**SPEC, "policy": {"model": str(outside)}},
        {**SPEC, "environment": {"name": "mine:Own", "options": {"files": [str(outside / "secret")]}}},
    ]
    async with serving(home, allowed_roots=(allowed.resolve(),)) as api:
        for spec in refused:
            answer = await api.post("/v1/runs", json={"spec": spec})
            assert answer.status_code == 422
            (problem,) = answer.json()["errors"]
            assert problem["allowed"] == f"a path below {allowed.resolve()}"
            assert "hunter2" not in answer.text
        answer = await api.post("/v1/runs", json={"spec": with_rows(allowed / "rows.jsonl")})
        assert answer.status_code == 503  # allowed; Temporal is away
    async with serving(home, wide=True, allowed_roots=()) as api:
        headers = bearer(token_of(Store(home.store_url), Role.OPERATOR))
        answer = await api.post("/v1/runs", json={"spec": with_rows(allowed / "rows.jsonl")}, headers=headers)
        assert (answer.status_code, "no files of the server" in answer.json()["detail"]) == (422, True)


def test_it_refuses_to_listen_wider_until_somebody_holds_a_token(home: Home) -> None:
    def api(*arguments: str, seconds: float = 30) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "api", *arguments],
            cwd=ROOT,
            env={**os.environ, HOME_VARIABLE: str(home.root)},
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    refused = api("--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "ratchet token create NAME --role admin --offline" in refused.stderr
    made = api("--first-token", "ops")
    assert made.returncode == 0
    store = Store(home.store_url)
    holder = Tokens(store).holder(made.stdout.strip())
    store.close()
    assert holder is not None
    assert (holder.name, holder.role) == ("ops", Role.ADMIN)
    with pytest.raises(subprocess.TimeoutExpired):  # now it serves
        api("--host", "0.0.0.0", "--port", "0", seconds=4)
