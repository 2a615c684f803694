"""Forks: another run from a checkpoint of this one, on the same data, with what was changed."""

from typing import Any

import httpx

from ratchet.artifacts.pins import pinned_by
from ratchet.spec.faults import DataFault
from ratchet.spec.ids import OpKind
from ratchet.spec.state import RunPhase
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
