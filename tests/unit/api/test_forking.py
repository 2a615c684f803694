"""Forks: another run from a checkpoint of this one, on the same data, with what was changed."""

import asyncio
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from api.workflows import RunWorkflows
from ratchet.artifacts.beginnings import read_beginning
from ratchet.artifacts.pins import pinned_by
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.faults import Conflict, DataFault, Unavailable
from ratchet.spec.ids import OpKind
from ratchet.spec.state import RunInput, RunPhase
from ratchet.spec.views import Problem, RunView
from workers.testing.scripted import ScriptedStack

EVERY = {"every": 1, "keep_last": 9}


def problem_of(response: httpx.Response) -> Problem:
    assert response.status_code >= 400
    return Problem.model_validate_json(response.content)


async def test_a_fork_goes_on_where_its_parents_checkpoint_was(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    await launch(run, scripted_spec(4, checkpointing=EVERY))
    await ended(run)
    child = f"{run}-fork"
    body = {"at": 2, "overrides": ["policy.optimizer.lr=1e-6", "grpo.max_num_steps=3"], "run_id": child}
    response = await api.post(f"/v1/runs/{run}/fork", json=body)
    assert (response.status_code, response.headers["location"]) == (201, f"/v1/runs/{child}")
    assert RunView.model_validate_json(response.content).spec["policy"]["optimizer"]["lr"] == 1e-6
    view = await ended(child)
    assert (view.phase, view.step, view.max_num_steps) == (RunPhase.COMPLETED, 3, 3)
    (step,) = stack.store.steps_on_path(child)
    of_parent = stack.store.steps_on_path(run)[2]
    # The same data, from the same weights: the scripted trainer's weights are a hash of both.
    assert (step.step, step.cursor_start, step.version_digest) == (3, 4, of_parent.version_digest)
    assert pinned_by(stack.home.run_folder(run) / "checkpoints" / "1-2") == [child]


async def test_a_fork_that_failed_before_its_first_checkpoint_is_resumed_from_its_parents(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    await launch(run, scripted_spec(2, checkpointing=EVERY))
    await ended(run)
    child = f"{run}-fork"
    stack.script.faults[OpKind.ROLLOUT_BATCH, 4] = [DataFault("prompt 7 cannot be scored")]
    body = {"at": 2, "overrides": ["grpo.max_num_steps=4", "checkpointing.every=0"], "run_id": child}
    await api.post(f"/v1/runs/{run}/fork", json=body)
    assert (await ended(child)).phase is RunPhase.FAILED
    await api.post(f"/v1/runs/{child}/resume")
    assert (await ended(child)).phase is RunPhase.COMPLETED
    steps = stack.store.steps_on_path(child)
    assert [(row.step, row.incarnation, row.cursor_start) for row in steps] == [(3, 2, 4), (4, 2, 6)]


async def test_of_two_forks_with_one_id_the_one_that_runs_keeps_its_pin(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    await launch(run, scripted_spec(2, checkpointing=EVERY))
    await ended(run)
    child, checkpoints = f"{run}-fork", stack.home.run_folder(run) / "checkpoints"

    def ask(at: int) -> Any:
        body = {"at": at, "overrides": ["grpo.max_num_steps=3"], "run_id": child}
        return api.post(f"/v1/runs/{run}/fork", json=body)

    answers = await asyncio.gather(ask(1), ask(1), ask(2))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409]
    await ended(child)
    first = read_beginning(LocalArtifactStore(stack.home.artifacts), child)
    assert first is not None
    grew_from = Path(first.state.forked_from.checkpoint.path).name
    pinned = {name: pinned_by(checkpoints / name) for name in ("1-1", "1-2")}
    assert pinned == {"1-1": [], "1-2": [], grew_from: [child]}


async def test_a_fork_that_was_started_though_nobody_answered_keeps_what_it_needs(
    api: httpx.AsyncClient,
    stack: ScriptedStack,
    run: str,
    launch: Any,
    ended: Any,
    scripted_spec: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await launch(run, scripted_spec(2, checkpointing=EVERY))
    await ended(run)
    child, start = f"{run}-fork", RunWorkflows.start

    async def unheard(workflows: RunWorkflows, first: RunInput, *, again: bool = False) -> str:
        await start(workflows, first, again=again)
        raise Unavailable("Temporal gave no answer")

    body = {"at": 2, "overrides": ["grpo.max_num_steps=3"], "run_id": child}
    with monkeypatch.context() as patch:
        patch.setattr(RunWorkflows, "start", unheard)
        assert (await api.post(f"/v1/runs/{run}/fork", json=body)).status_code == 503
    await asyncio.wait_for(stack.client.get_workflow_handle(child).result(), 30)
    assert (await ended(child)).phase is RunPhase.COMPLETED
    assert pinned_by(stack.home.run_folder(run) / "checkpoints" / "1-2") == [child]
    assert read_beginning(LocalArtifactStore(stack.home.artifacts), child) is not None


async def test_what_never_ran_leaves_nothing_and_may_be_asked_for_again(
    api: httpx.AsyncClient,
    stack: ScriptedStack,
    run: str,
    launch: Any,
    ended: Any,
    scripted_spec: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await launch(run, scripted_spec(2, checkpointing=EVERY))
    await ended(run)
    child = f"{run}-fork"
    body = {"at": 2, "overrides": ["grpo.max_num_steps=3"], "run_id": child}

    async def away(*_: Any, **__: Any) -> NoReturn:
        raise Unavailable("Temporal cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(RunWorkflows, "start", away)
        assert (await api.post(f"/v1/runs/{run}/fork", json=body)).status_code == 503

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise Conflict("no")

    with monkeypatch.context() as patch:
        patch.setattr(stack.store, "register_run", refused)  # the control worker's
        assert (await api.post(f"/v1/runs/{run}/fork", json=body)).status_code == 409
    assert not stack.home.run_folder(child).joinpath("beginning.json").exists()
    assert pinned_by(stack.home.run_folder(run) / "checkpoints" / "1-2") == []
    assert (await api.post(f"/v1/runs/{run}/fork", json=body)).status_code == 201
    assert (await ended(child)).phase is RunPhase.COMPLETED


async def test_only_checkpoints_on_the_path_can_be_forked(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    await launch(run, scripted_spec(5, checkpointing={"every": 2}))
    await ended(run)
    missing = problem_of(await api.post(f"/v1/runs/{run}/fork", json={"at": 3}))
    assert (missing.status, missing.detail) == (
        409,
        f"run {run} has no checkpoint of step 3: fork at step 2 or 4 or 5",
    )


async def test_what_a_fork_may_not_change_is_refused_with_everything_else_that_is_wrong(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    await launch(run, scripted_spec(2))
    await ended(run)

    async def refused(*overrides: str) -> list[str]:
        body = {"at": 2, "overrides": list(overrides)}
        problem = problem_of(await api.post(f"/v1/runs/{run}/fork", json=body))
        assert problem.status == 422
        assert {item.pointer for item in problem.errors} == {"#/overrides"}
        return [item.key for item in problem.errors]

    assert await refused("policy.model=smollm2-135m", "seed=8") == [
        "policy.model",
        "seed",
        "grpo.max_num_steps",
    ]
    assert await refused("loss.ratio_clip_mim=1", "generation.temperature=-1", "oops") == [
        "--set oops",
        "generation.temperature",
        "loss.ratio_clip_mim",
    ]
    assert stack.store.list_runs(limit=5)[0].id == run
    assert pinned_by(stack.home.run_folder(run) / "checkpoints" / "1-2") == []
