"""The API over a real store, with Temporal away: what it answers, and how it says no."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from api.app import create_app
from ratchet.artifacts.beginnings import keep_beginning
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.admission import AdmitRequest
from ratchet.spec.faults import Fault, FaultKind
from ratchet.spec.home import Home
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.stack import StackState
from ratchet.spec.state import RunInput, RunPhase, RunState
from ratchet.spec.views import IncidentList, Problem, RunList, RunView, StepList
from ratchet.store.admission import Admissions

CLOSED_PORT = "127.0.0.1:1"

SPEC: dict[str, Any] = {
    "name": "tiny-addition",
    "policy": {"model": "tiny"},
    "generation": {"max_new_tokens": 5},
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 4},
    "environment": {"name": "arithmetic"},
}


@pytest.fixture(autouse=True)
def _stack_without_temporal(home: Home) -> None:
    stack = StackState(
        supervisor_pid=1,
        temporal_address=CLOSED_PORT,
        namespace="ratchet",
        temporal_ui="http://127.0.0.1:8233",
    )
    home.root.mkdir(exist_ok=True)
    home.state_file.write_text(stack.model_dump_json())


@pytest_asyncio.fixture
async def api(home: Home) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(home)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def problem_of(response: httpx.Response) -> Problem:
    assert response.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(response.content)
    assert problem.status == response.status_code
    assert "\n" not in problem.detail
    return problem


async def test_alive_but_not_ready(api: httpx.AsyncClient) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok"}
    ready = await api.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["parts"] == {
        "store": "ok",
        "temporal": "Temporal cannot be reached: see `ratchet status`",
    }


async def test_a_run_on_record_is_shown_in_full(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("done", RunPhase.COMPLETED, steps=4)
    view = RunView.model_validate_json((await api.get("/v1/runs/done")).content)
    assert (view.name, view.phase, view.step, view.max_num_steps) == ("tiny-addition", "completed", 4, 4)
    assert [(seen.step, seen.accuracy) for seen in view.evaluations] == [(0, 0.40), (4, 0.75)]
    assert view.last_checkpoint is not None
    assert view.last_checkpoint.path == "/artifacts/runs/done/checkpoints/1-4"
    assert view.last_step is not None
    assert view.last_step.metrics == {"loss": 0.01, "grad_norm": 0.25, "logprob_error": 2e-6}
    assert view.last_step.tokens_per_second == pytest.approx(240.0)
    assert view.links.temporal == "http://127.0.0.1:8233/namespaces/ratchet/workflows/done"
    assert (view.ended_at - view.created_at).total_seconds() == 9.0  # type: ignore[operator]


async def test_a_running_run_is_shown_from_the_record_while_temporal_is_away(
    api: httpx.AsyncClient, on_record: Any
) -> None:
    on_record.run("on", RunPhase.RUNNING, steps=2)
    view = RunView.model_validate_json((await api.get("/v1/runs/on")).content)
    assert (view.phase, view.step, view.live, view.doing) == ("running", 2, False, [])


async def test_steps_since_and_on_the_path_to_the_head(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=3)
    on_record.restored("r", from_step=1, steps=1)

    async def steps(since: int) -> list[tuple[int, int]]:
        answer = await api.get("/v1/runs/r/steps", params={"since": since})
        return [(s.incarnation, s.step) for s in StepList.model_validate_json(answer.content).steps]

    assert await steps(0) == [(1, 1), (2, 2)]
    assert await steps(1) == [(2, 2)]
    assert await steps(2) == []
    problem = problem_of(await api.get("/v1/runs/r/steps", params={"since": -1}))
    assert (problem.status, problem.errors[0].key) == (422, "since")


async def test_lists_go_on_from_a_cursor_and_keep_their_place(api: httpx.AsyncClient, on_record: Any) -> None:
    for number in range(5):
        phase = RunPhase.STOPPED if number % 2 else RunPhase.COMPLETED
        on_record.run(f"run-{number}", phase, steps=1, began=1000.0 + number)

    async def page(**params: str | int) -> RunList:
        return RunList.model_validate_json((await api.get("/v1/runs", params=params)).content)

    first = await page(limit=2)
    assert [run.id for run in first.runs] == ["run-4", "run-3"]
    on_record.run("newer", RunPhase.COMPLETED, began=2000.0)
    second = await page(limit=2, cursor=str(first.next_cursor))
    assert [run.id for run in second.runs] == ["run-2", "run-1"]
    last = await page(limit=2, cursor=str(second.next_cursor))
    assert [run.id for run in last.runs] == ["run-0"]
    assert last.next_cursor is None
    assert [run.id for run in (await page(phase="stopped")).runs] == ["run-3", "run-1"]


@pytest.mark.parametrize("query", ["cursor=zzz", "cursor=bm9zdWNo", "limit=0", "limit=9999", "phase=asleep"])
async def test_a_wrong_list_request_is_refused(api: httpx.AsyncClient, query: str) -> None:
    response = await api.get(f"/v1/runs?{query}")
    problem = problem_of(response)
    assert 400 <= problem.status < 500


async def test_an_unknown_run_is_a_404_with_the_nearest_id(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("tiny-addition-3fa2c1", RunPhase.COMPLETED)
    for method, path in [("GET", ""), ("GET", "/steps"), ("POST", "/pause"), ("POST", "/stop")]:
        problem = problem_of(await api.request(method, f"/v1/runs/tiny-addition-3fa2c7{path}"))
        assert problem.status == 404
        assert "did you mean tiny-addition-3fa2c1?" in problem.detail
    assert "ratchet run ls" in problem_of(await api.get("/v1/runs/zebra")).detail


SET = {"values": {"policy.optimizer.lr": 1e-6}}


@pytest.mark.parametrize(
    ("action", "body"), [("pause", None), ("stop", None), ("checkpoint", None), ("hyperparameters", SET)]
)
async def test_a_run_that_has_ended_cannot_be_steered_but_resumed(
    api: httpx.AsyncClient, on_record: Any, action: str, body: object
) -> None:
    fault = Fault(kind=FaultKind.STORAGE, message="the disk is full")
    on_record.run("over", RunPhase.FAILED, steps=1, fault=fault)
    problem = problem_of(await api.post(f"/v1/runs/over/{action}", json=body))
    assert problem.status == 409
    assert "has ended" in problem.detail
    assert "ratchet run resume over" in problem.detail


@pytest.mark.parametrize("phase", [RunPhase.RUNNING, RunPhase.FAILED])
@pytest.mark.parametrize(
    ("action", "body"), [("resume", None), ("extend", {"max_num_steps": 9}), ("rebuild/store", None)]
)
async def test_going_on_while_temporal_is_away_says_to_come_back(
    api: httpx.AsyncClient, on_record: Any, phase: RunPhase, action: str, body: object
) -> None:
    on_record.run("on", phase, steps=1)
    assert problem_of(await api.post(f"/v1/runs/on/{action}", json=body)).status == 503
    assert on_record.store.get_run("on").phase is phase


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"policy.optimizer.lr": -1.0, "policy.model": 3.0}, ["policy.optimizer.lr", "policy.model"]),
        ({"loss.ratio_clip_mim": 0.1}, ["loss.ratio_clip_mim"]),
    ],
)
async def test_hyperparameters_are_checked_key_by_key(
    api: httpx.AsyncClient, on_record: Any, values: dict[str, float], wrong: list[str]
) -> None:
    on_record.run("on", RunPhase.RUNNING, steps=1)
    problem = problem_of(await api.post("/v1/runs/on/hyperparameters", json={"values": values}))
    assert problem.status == 422
    assert [item.key for item in problem.errors] == wrong
    assert [item.pointer for item in problem.errors] == [f"#/values/{key}" for key in wrong]


async def test_what_a_recovery_is_from_stands_beside_its_phase(
    api: httpx.AsyncClient, on_record: Any
) -> None:
    fault = Fault(kind=FaultKind.ACTOR_LOST, message="the trainer's process is gone", role="trainer")
    on_record.run("back", RunPhase.RECOVERING, steps=2, fault=fault)
    view = RunView.model_validate_json((await api.get("/v1/runs/back")).content)
    assert (view.phase, view.fault) == (RunPhase.RECOVERING, fault)
    (listed,) = RunList.model_validate_json((await api.get("/v1/runs")).content).runs
    assert (listed.phase, listed.fault) == (RunPhase.RECOVERING, fault)


async def test_the_newest_incidents_are_shown_and_all_are_listed(
    api: httpx.AsyncClient, on_record: Any
) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=2)
    for number in range(7):
        on_record.incident("r", number)
    view = RunView.model_validate_json((await api.get("/v1/runs/r")).content)
    assert [seen.key for seen in view.incidents] == [f"incident/{n}" for n in range(2, 7)]
    everything = IncidentList.model_validate_json((await api.get("/v1/runs/r/incidents")).content)
    assert [seen.key for seen in everything.incidents] == [f"incident/{n}" for n in range(7)]
    last = everything.incidents[-1]
    assert (last.lost, last.cause, last.done, last.seconds) == (
        "generator",
        "its process is gone",
        "replaced while the run went on",
        6.5,
    )


async def test_a_step_that_was_trained_again_says_so(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=3)
    on_record.restored("r", from_step=2, steps=2)
    answer = StepList.model_validate_json((await api.get("/v1/runs/r/steps")).content)
    assert [(s.incarnation, s.step, s.retrained) for s in answer.steps] == [
        (1, 1, False),
        (1, 2, False),
        (2, 3, True),
        (2, 4, False),
    ]


@pytest.mark.parametrize("action", ["pause", "resume", "stop"])
async def test_steering_while_temporal_is_away_says_to_come_back(
    api: httpx.AsyncClient, on_record: Any, action: str
) -> None:
    on_record.run("on", RunPhase.RUNNING, steps=1)
    response = await api.post(f"/v1/runs/on/{action}")
    assert problem_of(response).status == 503
    assert int(response.headers["retry-after"]) > 0


async def test_launching_a_wrong_spec_reports_every_problem_by_pointer(api: httpx.AsyncClient) -> None:
    spec = {
        **SPEC,
        "generation": {"max_new_tokens": -5, "temprature": 1.0},
        "loss": {"clip/max~": 1},
    }
    response = await api.post("/v1/runs", json={"spec": spec})
    problem = problem_of(response)
    assert (problem.status, problem.type) == (422, "urn:ratchet:problem:invalid-spec")
    assert {item.pointer for item in problem.errors} == {
        "#/spec/generation/max_new_tokens",
        "#/spec/generation/temprature",
        "#/spec/loss/clip~1max~0",
    }
    misspelt = next(item for item in problem.errors if item.pointer.endswith("temprature"))
    assert misspelt.hint == "did you mean generation.temperature?"


async def test_launching_what_cannot_run_reports_model_and_environment_together(
    api: httpx.AsyncClient,
) -> None:
    spec = {**SPEC, "policy": {"model": "tinny"}, "environment": {"name": "arithmetik"}}
    problem = problem_of(await api.post("/v1/runs", json={"spec": spec}))
    assert problem.status == 422
    assert [item.key for item in problem.errors] == ["policy.model", "environment.name"]


@pytest.mark.parametrize(
    "body", [{}, {"spec": 3}, {"spec": SPEC, "run_id": "No Good"}, {"spec": SPEC, "runid": "x"}, "{"]
)
async def test_a_launch_request_that_is_none(api: httpx.AsyncClient, body: object) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    response = await api.post("/v1/runs", content=content, headers={"content-type": "application/json"})
    problem = problem_of(response)
    assert problem.status == 422
    assert problem.errors


async def test_launching_while_temporal_is_away_leaves_nothing_behind(
    api: httpx.AsyncClient, on_record: Any, home: Home
) -> None:
    response = await api.post("/v1/runs", json={"spec": SPEC, "run_id": "early"})
    assert problem_of(response).status == 503
    assert on_record.store.list_runs() == []
    assert not home.run_folder("early").exists()


async def test_an_id_is_used_once(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("taken", RunPhase.COMPLETED)
    problem = problem_of(await api.post("/v1/runs", json={"spec": SPEC, "run_id": "taken"}))
    assert problem.status == 409
    assert "taken exists already" in problem.detail


async def test_an_id_is_not_used_over_the_artifacts_of_another_run(
    api: httpx.AsyncClient, home: Home
) -> None:
    async def refused() -> str:
        problem = problem_of(await api.post("/v1/runs", json={"spec": SPEC, "run_id": "lost"}))
        assert problem.status == 409
        return problem.detail

    (home.run_folder("lost") / "journal" / "1").mkdir(parents=True)
    assert (await refused()).endswith("choose another id")
    first = RunInput(spec=RunSpec.model_validate(SPEC), state=RunState(run="lost"))
    keep_beginning(LocalArtifactStore(home.artifacts), first)
    assert (await refused()).endswith("by `ratchet run resume lost`")


async def test_only_this_host_is_served(api: httpx.AsyncClient) -> None:
    response = await api.get("/v1/runs", headers={"host": "evil.example"})
    assert response.status_code == 400


async def test_unknown_paths_and_methods_are_problems_too(api: httpx.AsyncClient) -> None:
    assert problem_of(await api.get("/v1/rums")).status == 404
    assert problem_of(await api.delete("/v1/runs")).status == 405


async def test_the_documentation_describes_every_answer(api: httpx.AsyncClient) -> None:
    paths = (await api.get("/openapi.json")).json()["paths"]
    assert set(paths) == {
        "/healthz",
        "/metrics",
        "/readyz",
        "/v1/runs",
        "/v1/runs/{run}",
        "/v1/runs/{run}/steps",
        "/v1/runs/{run}/incidents",
        "/v1/runs/{run}/pause",
        "/v1/runs/{run}/resume",
        "/v1/runs/{run}/stop",
        "/v1/runs/{run}/checkpoint",
        "/v1/runs/{run}/extend",
        "/v1/runs/{run}/hyperparameters",
        "/v1/runs/{run}/fork",
        "/v1/runs/{run}/rebuild/store",
        "/v1/runs/{run}/rebuild/data-plane",
        "/v1/runs/{run}/rebuild/buffer",
        "/v1/runs/{run}/metrics",
        "/v1/runs/{run}/checkpoints",
        "/v1/runs/{run}/evaluations",
        "/v1/runs/{run}/rollouts",
        "/v1/runs/{run}/rollouts/{key}",
        "/v1/runs/{run}/lineage",
        "/v1/runs/{run}/lineage/dot",
        "/v1/runs/{run}/lineage/openlineage",
        "/v1/runs/{run}/events",
        "/v1/events",
        "/v1/tokens",
        "/v1/tokens/{token}",
        "/v1/audit",
    }
    stop = paths["/v1/runs/{run}/stop"]["post"]
    assert stop["operationId"] == "stop"
    assert stop["responses"].keys() >= {"202", "401", "403", "404", "409", "422", "500", "503"}
    assert stop["responses"]["409"]["content"].keys() == {"application/problem+json"}


async def test_queued_runs_say_behind_whom(api: httpx.AsyncClient, on_record: Any) -> None:
    queue = Admissions(on_record.store)
    for since, run in enumerate(("holder", "first", "second")):
        on_record.run(run, RunPhase.RUNNING if run == "holder" else RunPhase.QUEUED, steps=0)
        queue.ask(AdmitRequest(run=run, execution="w", priority=0, since=float(since)), 1)
    view = RunView.model_validate_json((await api.get("/v1/runs/second")).content)
    assert view.queue is not None
    assert (view.queue.ahead, view.queue.holders) == (["first"], ["holder"])
    assert view.doing == ["queued behind 1 run: first (priority 0)"]
    listed = RunList.model_validate_json((await api.get("/v1/runs")).content)
    assert {run.id: run.queue and run.queue.words for run in listed.runs} == {
        "holder": None,
        "first": "queued behind 1 run: holder, which has the session (priority 0)",
        "second": "queued behind 1 run: first (priority 0)",
    }
    queue.release("first", "w")
    view = RunView.model_validate_json((await api.get("/v1/runs/second")).content)
    assert view.doing == ["queued behind 1 run: holder, which has the session (priority 0)"]
