"""Going on with runs: whatever ended them, once, from the newest checkpoint, under the same id."""

import asyncio
from typing import Any

import httpx
from temporalio.client import WorkflowHandle

from ratchet.artifacts.beginnings import keep_beginning
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.control import RegisterRun
from ratchet.spec.faults import DataFault
from ratchet.spec.ids import OpKind, session_queue
from ratchet.spec.state import RunInput, RunPhase, RunState
from ratchet.spec.views import Problem, RunView
from workers.testing.scripted import ScriptedStack

EVERY = {"every": 1}


def view_of(response: httpx.Response) -> RunView:
    assert response.status_code in (200, 201, 202), response.text
    return RunView.model_validate_json(response.content)


def problem_of(response: httpx.Response) -> Problem:
    assert response.status_code >= 400
    return Problem.model_validate_json(response.content)


def handle(stack: ScriptedStack, run: str) -> WorkflowHandle[Any, Any]:
    return stack.client.get_workflow_handle(run)


async def executions(stack: ScriptedStack, run: str) -> int:
    return len([one async for one in stack.client.list_workflows(f'WorkflowId = "{run}"')])


def path(stack: ScriptedStack, run: str) -> list[tuple[int, int]]:
    return [(row.step, row.incarnation) for row in stack.store.steps_on_path(run)]


async def test_a_failed_run_goes_on_from_its_newest_checkpoint(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    stack.script.faults[OpKind.ROLLOUT_BATCH, 3] = [DataFault("prompt 5 cannot be scored")]
    await launch(run, scripted_spec(4, checkpointing=EVERY))
    assert (await ended(run)).phase is RunPhase.FAILED
    resumed = view_of(await api.post(f"/v1/runs/{run}/resume"))
    assert resumed.fault is None
    view = await ended(run)
    assert (view.phase, view.step, view.incarnation) == (RunPhase.COMPLETED, 4, 2)
    assert path(stack, run) == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert f"{run}/2/2/restore" in stack.script.carried_out
    assert stack.cluster.opened == [session_queue(run, 1), session_queue(run, 2)]


async def test_resuming_twice_at_once_is_one_resume(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    stack.script.faults[OpKind.ROLLOUT_BATCH, 2] = [DataFault("prompt 3 cannot be scored")]
    await launch(run, scripted_spec(3, checkpointing=EVERY))
    await ended(run)
    hold = stack.script.hold(OpKind.ROLLOUT_BATCH, 3)
    answers = await asyncio.gather(*(api.post(f"/v1/runs/{run}/resume") for _ in range(3)))
    assert [answer.status_code for answer in answers] == [202, 202, 202]
    assert not any(view_of(answer).phase.final for answer in answers)
    later = view_of(await api.post(f"/v1/runs/{run}/resume"))
    hold.set()
    assert later.incarnation == 2
    assert (await ended(run)).phase is RunPhase.COMPLETED
    assert await executions(stack, run) == 2
    assert [row.number for row in stack.store.incarnations(run)] == [1, 2]


async def test_a_terminated_run_is_shown_as_failed_and_goes_on(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    await launch(run, scripted_spec(3, checkpointing=EVERY))
    await asyncio.wait_for(stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait(), 30)
    while not stack.store.checkpoints(run):
        await asyncio.sleep(0.02)
    await handle(stack, run).terminate(reason="by mistake")
    seen = await ended(run)
    assert seen.phase is RunPhase.FAILED
    assert seen.fault is not None
    assert "by mistake" in seen.fault.message

    stack.script.holds.clear()
    assert not view_of(await api.post(f"/v1/runs/{run}/resume")).phase.final
    assert (await ended(run)).phase is RunPhase.COMPLETED
    assert path(stack, run) == [(1, 1), (2, 2), (3, 2)]


async def test_a_run_that_temporal_has_forgotten_says_so_and_goes_on(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, ended: Any, scripted_spec: Any
) -> None:
    request = RegisterRun(run=run, spec=scripted_spec(2), workflow_run_id="forgotten", incarnation=3)
    stack.store.register_run(request, at=1000.0, code={})
    seen = await ended(run)
    assert seen.phase is RunPhase.FAILED
    assert "Temporal has no history" in seen.fault.message
    view_of(await api.post(f"/v1/runs/{run}/resume"))
    view = await ended(run)
    assert (view.phase, view.step, view.incarnation) == (RunPhase.COMPLETED, 2, 4)
    assert stack.cluster.opened == [session_queue(run, 4)]


async def test_a_run_of_which_only_artifacts_are_left_goes_on(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, ended: Any, scripted_spec: Any
) -> None:
    first = RunInput(spec=scripted_spec(2), state=RunState(run=run))
    keep_beginning(LocalArtifactStore(stack.home.artifacts), first)
    view_of(await api.post(f"/v1/runs/{run}/resume"))
    assert (await ended(run)).phase is RunPhase.COMPLETED
    unknown = problem_of(await api.post(f"/v1/runs/{run}x/resume"))
    assert (unknown.status, unknown.detail) == (404, f"there is no run {run}x: did you mean {run}?")


async def test_a_launch_leaves_what_it_takes_to_begin_again_without_store_and_history(
    stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    await launch(run, scripted_spec(2))
    await ended(run)
    kept = RunInput.model_validate_json((stack.home.run_folder(run) / "beginning.json").read_bytes())
    assert (kept.spec, kept.state.run) == (scripted_spec(2), run)


async def test_a_completed_run_is_extended_not_resumed(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    await launch(run, scripted_spec(2))
    await ended(run)
    refused = problem_of(await api.post(f"/v1/runs/{run}/resume"))
    assert refused.status == 409
    assert f"ratchet run extend {run} --steps 4" in refused.detail
    short = problem_of(await api.post(f"/v1/runs/{run}/extend", json={"max_num_steps": 2}))
    assert short.status == 422

    view_of(await api.post(f"/v1/runs/{run}/extend", json={"max_num_steps": 3}))
    view = await ended(run)
    assert (view.phase, view.step, view.max_num_steps) == (RunPhase.COMPLETED, 3, 3)
    assert path(stack, run) == [(1, 1), (2, 1), (3, 2)]


async def test_what_was_changed_on_the_way_is_not_forgotten_by_a_resume(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    hold = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    stack.script.faults[OpKind.ROLLOUT_BATCH, 4] = [DataFault("prompt 7 cannot be scored")]
    await launch(run, scripted_spec(3, checkpointing=EVERY))
    await asyncio.wait_for(stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait(), 30)
    view_of(await api.post(f"/v1/runs/{run}/extend", json={"max_num_steps": 5}))
    values = {"policy.optimizer.lr": 1e-6}
    view_of(await api.post(f"/v1/runs/{run}/hyperparameters", json={"values": values}))
    hold.set()
    assert (await ended(run)).phase is RunPhase.FAILED
    view_of(await api.post(f"/v1/runs/{run}/resume"))
    view = await ended(run)
    assert (view.step, view.max_num_steps) == (5, 5)
    given = {op.removeprefix(f"{run}/"): told for op, told in stack.script.hyperparameters.items()}
    assert given["1/1/train_step"] == {}
    assert given["1/2/train_step"] == given["1/3/train_step"] == values
    assert given["2/4/train_step"] == given["2/5/train_step"] == values


async def test_a_checkpoint_on_demand(
    api: httpx.AsyncClient, stack: ScriptedStack, run: str, launch: Any, ended: Any, scripted_spec: Any
) -> None:
    hold = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    await launch(run, scripted_spec(4))
    await asyncio.wait_for(stack.script.began[OpKind.ROLLOUT_BATCH, 2].wait(), 30)
    view_of(await api.post(f"/v1/runs/{run}/checkpoint"))
    hold.set()
    await ended(run)
    assert [row.step for row in stack.store.checkpoints(run)] == [2, 4]
