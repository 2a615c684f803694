"""RunWorkflow over real Temporal, store and conductor; the engines follow a script."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment

from ratchet.spec import names
from ratchet.spec.faults import DataFault, InfraFault, SpecError
from ratchet.spec.ids import OpKind, session_queue
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase, RunStatus
from workers.testing.scripted import scripted_stack

Stack = Any  # tests/workflows/conftest.py: Bench


async def test_a_run_trains_every_step_once_and_writes_it_down(stack: Stack, run: str) -> None:
    handle = await stack.start(stack.spec(3, evaluation={"num_problems": 4}, checkpointing={"every": 2}), run)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.COMPLETED, 3)
    assert result.checkpoint is not None
    assert result.checkpoint.version.step == 3

    carried_out = [entry.split("/", 1)[1] for entry in stack.script.carried_out]
    assert sorted(carried_out) == sorted(
        ["1/0/restore", "1/0/refit", "1/0/evaluate", "1/3/evaluate"]
        + [f"1/{step}/{kind}" for step in (1, 2, 3) for kind in ("rollout_batch", "train_step", "refit")]
        + [f"1/{step}/{kind}" for step in (2, 3) for kind in ("snapshot", "commit_checkpoint")]
    )
    steps = stack.store.steps(run)
    assert [(row.step, row.cursor_start) for row in steps] == [(1, 0), (2, 2), (3, 4)]
    assert steps[-1].cursor_end == 6
    assert [row.step for row in stack.store.checkpoints(run)] == [2, 3]
    assert [row.step for row in stack.store.evaluations(run)] == [0, 3]
    row = stack.store.get_run(run)
    assert row is not None
    assert (row.phase, row.step) == (RunPhase.COMPLETED, 3)
    assert stack.cluster.closed == [session_queue(run, 1)]


async def test_continuing_as_new_joins_the_open_checkpoint_and_changes_nothing(
    stack: Stack, run: str
) -> None:
    whole = await (await stack.start(stack.spec(6), f"{run}-whole")).result()

    write = stack.script.hold(OpKind.COMMIT_CHECKPOINT, 2)
    cut = stack.spec(6, checkpointing={"every": 2}, runtime={"continue_as_new_every_steps": 1})
    handle = await stack.start(cut, run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 4)  # two executions on, the write of step 2 still open
    write.set()
    result = await handle.result()

    assert result.checkpoint is not None
    assert whole.checkpoint is not None
    assert result.checkpoint.digest == whole.checkpoint.digest
    assert stack.script.carried_out.count(f"{run}/1/2/commit_checkpoint") == 1
    assert len({row.step for row in stack.store.checkpoints(run)}) == 3
    assert (await handle.describe()).run_id != handle.first_execution_run_id


async def test_pause_waits_at_the_next_boundary_and_resume_goes_on(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    handle = await stack.start(stack.spec(3), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 2)
    status = await handle.execute_update(names.UPDATE_PAUSE, result_type=RunStatus)
    assert (status.phase, status.paused) == (RunPhase.RUNNING, True)
    rollout.set()
    await stack.in_phase(run, RunPhase.PAUSED)
    assert f"{run}/1/2/train_step" in stack.script.carried_out
    assert not stack.script.began[OpKind.ROLLOUT_BATCH, 3].is_set()
    await handle.execute_update(names.UPDATE_RESUME, result_type=RunStatus)
    assert (await handle.result()).phase is RunPhase.COMPLETED
    assert [event.topic for event in stack.store.events(run) if event.topic in ("paused", "resumed")] == [
        "paused",
        "resumed",
    ]


async def test_an_update_sent_twice_under_one_id_is_applied_once(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    handle = await stack.start(stack.spec(2, runtime={"continue_as_new_every_steps": 1}), run)
    await handle.execute_update(names.UPDATE_PAUSE, id="one", result_type=RunStatus)
    rollout.set()
    await stack.in_phase(run, RunPhase.PAUSED)
    await handle.execute_update(names.UPDATE_RESUME, id="two", result_type=RunStatus)
    await stack.begun(OpKind.ROLLOUT_BATCH, 2)
    current = stack.client.get_workflow_handle(run)  # continued as new by now
    again = await current.execute_update(names.UPDATE_PAUSE, id="one", result_type=RunStatus)
    assert again.paused is False
    assert (await handle.result()).phase is RunPhase.COMPLETED


async def test_stop_gives_up_an_open_rollout_and_ends_with_a_checkpoint(stack: Stack, run: str) -> None:
    stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    handle = await stack.start(stack.spec(9), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 2)
    await handle.execute_update(names.UPDATE_STOP, result_type=RunStatus)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.STOPPED, 1)
    assert result.checkpoint is not None
    assert result.checkpoint.version.step == 1
    assert f"{run}/1/2/train_step" not in stack.script.carried_out
    with pytest.raises(Exception, match="completed"):
        await handle.execute_update(names.UPDATE_PAUSE)


async def test_stop_lets_an_open_train_step_finish(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(stack.spec(9), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await handle.execute_update(names.UPDATE_STOP, result_type=RunStatus)
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update(names.UPDATE_PAUSE)
    train.set()
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.STOPPED, 2)
    assert result.checkpoint is not None
    assert result.checkpoint.version.step == 2


async def test_a_fault_that_may_pass_is_tried_again(stack: Stack, run: str) -> None:
    stack.script.faults[OpKind.TRAIN_STEP, 1] = [InfraFault("out of memory"), InfraFault("out of memory")]
    result = await (await stack.start(stack.spec(1), run)).result()
    assert result.phase is RunPhase.COMPLETED
    (step,) = stack.store.steps(run)
    assert step.train_starts == 3


async def test_any_other_fault_fails_the_run_with_its_cause_and_closes_the_session(
    stack: Stack, run: str
) -> None:
    stack.script.faults[OpKind.ROLLOUT_BATCH, 2] = [DataFault("prompt 3 cannot be scored")]
    handle = await stack.start(stack.spec(3), run)
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert "prompt 3 cannot be scored" in str(caught.value.cause)
    row = stack.store.get_run(run)
    assert row is not None
    assert (row.phase, row.step) == (RunPhase.FAILED, 1)
    assert row.fault is not None
    assert row.fault.message.startswith("prompt 3 cannot be scored")
    assert f"ratchet run resume {run}" in row.fault.message
    assert stack.cluster.closed == [session_queue(run, 1)]


async def test_a_failed_checkpoint_fails_the_run(stack: Stack, run: str) -> None:
    stack.script.faults[OpKind.COMMIT_CHECKPOINT, 1] = [SpecError("cannot write checkpoint: disk full")]
    handle = await stack.start(stack.spec(4, checkpointing={"every": 1}), run)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    row = stack.store.get_run(run)
    assert row is not None
    assert row.fault is not None
    assert "disk full" in row.fault.message


async def test_a_run_goes_through_with_the_workflow_cache_off(
    ratchet_temporal: WorkflowEnvironment, tmp_path: Path, run: str, spec: Callable[..., RunSpec]
) -> None:
    async with scripted_stack(ratchet_temporal.client, tmp_path, cached=0) as stack:
        handle = await stack.start(spec(3, checkpointing={"every": 1}), run)
        assert (await handle.result()).phase is RunPhase.COMPLETED
