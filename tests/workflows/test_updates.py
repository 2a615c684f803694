"""Steering a run works at any moment, also during a recovery, and twice in a row."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from ratchet.spec import names
from ratchet.spec.control import ExtendRequest, HyperparametersRequest
from ratchet.spec.faults import ActorLost
from ratchet.spec.ids import OpKind
from ratchet.spec.state import RunPhase

Stack = Any  # tests/workflows/conftest.py: Bench

LOST = ActorLost("the trainer died", role="trainer")
LR = "policy.optimizer.lr"


async def recovering(stack: Stack, run: str, steps: int = 4, **sections: Any) -> tuple[Any, asyncio.Event]:
    """A run that lost its trainer in step 4 and restores the checkpoint of step 2, until the event is set."""
    restore = stack.script.hold(OpKind.RESTORE, 2)
    stack.script.faults[OpKind.TRAIN_STEP, 4] = [LOST]
    handle = await stack.start(stack.spec(steps, checkpointing={"every": 2}, **sections), run)
    await stack.begun(OpKind.RESTORE, 2)
    return handle, restore


async def test_a_checkpoint_is_made_at_the_next_boundary(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    handle = await stack.start(stack.spec(4), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 2)
    for _ in range(2):
        await stack.update(run, names.UPDATE_CHECKPOINT)
    rollout.set()
    await handle.result()
    assert [row.step for row in stack.store.checkpoints(run)] == [2, 4]


async def test_a_checkpoint_in_a_pause_is_made_at_once_and_once(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    handle = await stack.start(stack.spec(3), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 2)
    await stack.update(run, names.UPDATE_PAUSE)
    rollout.set()
    await stack.in_phase(run, RunPhase.PAUSED)
    await stack.update(run, names.UPDATE_CHECKPOINT)
    async with asyncio.timeout(30):
        while (await stack.status(run)).last_checkpoint is None:
            await asyncio.sleep(0.01)
    await stack.update(run, names.UPDATE_CHECKPOINT)
    await stack.update(run, names.UPDATE_RESUME)
    await handle.result()
    assert [row.step for row in stack.store.checkpoints(run)] == [2, 3]


async def test_a_run_is_extended_while_it_trains_and_while_it_ends(stack: Stack, run: str) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 2)
    write = stack.script.hold(OpKind.COMMIT_CHECKPOINT, 3)
    handle = await stack.start(stack.spec(2, runtime={"continue_as_new_every_steps": 1}), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 2)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await stack.update(run, names.UPDATE_EXTEND, ExtendRequest(max_num_steps=1))
    assert "has done 1 steps" in str(refused.value.cause)
    status = await stack.update(run, names.UPDATE_EXTEND, ExtendRequest(max_num_steps=3))
    assert status.max_num_steps == 3
    rollout.set()
    await stack.begun(OpKind.COMMIT_CHECKPOINT, 3)
    await stack.update(run, names.UPDATE_EXTEND, ExtendRequest(max_num_steps=4))
    write.set()
    assert (await handle.result()).step == 4
    row = stack.store.get_run(run)
    assert (row.max_num_steps, row.phase) == (4, RunPhase.COMPLETED)


async def test_hyperparameters_hold_from_the_next_step_on_and_old_steps_keep_theirs(
    stack: Stack, run: str
) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 4)
    stack.script.faults[OpKind.TRAIN_STEP, 6] = [LOST]
    spec = stack.spec(6, checkpointing={"every": 2}, runtime={"continue_as_new_every_steps": 1})
    handle = await stack.start(spec, run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 4)
    await stack.update(
        run,
        names.UPDATE_HYPERPARAMETERS,
        HyperparametersRequest(values={LR: 1e-3, "loss.ratio_clip_max": 0.3}),
    )
    stack.script.hold(OpKind.ROLLOUT_BATCH, 6)
    rollout.set()
    await stack.begun(OpKind.ROLLOUT_BATCH, 6)
    await stack.update(run, names.UPDATE_HYPERPARAMETERS, HyperparametersRequest(values={LR: 1e-4}))
    stack.script.holds[OpKind.ROLLOUT_BATCH, 6].set()
    await handle.result()
    given = {op.split("/", 1)[1]: values for op, values in stack.script.hyperparameters.items()}
    first, second = {LR: 1e-3, "loss.ratio_clip_max": 0.3}, {LR: 1e-4, "loss.ratio_clip_max": 0.3}
    assert given["1/3/train_step"] == {}
    assert given["1/4/train_step"] == given["1/5/train_step"] == given["2/5/train_step"] == first
    assert given["2/6/train_step"] == second
    events = [event.data for event in stack.store.events_about(run, names.TOPIC_HYPERPARAMETERS)]
    assert [event["from_step"] for event in events] == [4, 6]


async def test_hyperparameters_set_during_a_recovery_do_not_change_what_is_trained_again(
    stack: Stack, run: str
) -> None:
    handle, restore = await recovering(stack, run, 6)
    await stack.update(run, names.UPDATE_HYPERPARAMETERS, HyperparametersRequest(values={LR: 1e-3}))
    restore.set()
    await handle.result()
    given = {op.split("/", 1)[1]: values for op, values in stack.script.hyperparameters.items()}
    assert given["2/3/train_step"] == given["2/4/train_step"] == {}
    assert given["2/5/train_step"] == {LR: 1e-3}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "no hyperparameter"),
        ({"seed": 3}, "seed"),
        ({LR: -1.0}, LR),
        ({"loss.reference_policy_kl_penalty": 0.1}, "no reference"),
    ],
)
async def test_wrong_hyperparameters_are_refused(
    stack: Stack, run: str, values: dict[str, float], said: str
) -> None:
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    handle = await stack.start(stack.spec(1), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 1)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await stack.update(run, names.UPDATE_HYPERPARAMETERS, HyperparametersRequest(values=values))
    assert said in str(refused.value.cause)
    rollout.set()
    await handle.result()


async def test_a_stop_during_a_recovery_does_not_wait_for_it(stack: Stack, run: str) -> None:
    handle, _ = await recovering(stack, run)
    await stack.update(run, names.UPDATE_STOP)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.STOPPED, 2)
    assert result.checkpoint.version.step == 2
    row = stack.store.get_run(run)
    assert (row.phase, row.step) == (RunPhase.STOPPED, 2)
    (incident,) = stack.store.incidents(run)
    assert "the run was stopped" in incident.data["done"]
    assert incident.data["seconds"] is None


async def test_pause_resume_and_the_rest_during_a_recovery(stack: Stack, run: str) -> None:
    handle, restore = await recovering(stack, run, runtime={"continue_as_new_every_steps": 3})
    for _ in range(2):
        status = await stack.update(run, names.UPDATE_PAUSE)
    assert (status.phase, status.paused) == (RunPhase.RECOVERING, True)
    await stack.update(run, names.UPDATE_CHECKPOINT)
    await stack.update(run, names.UPDATE_EXTEND, ExtendRequest(max_num_steps=5))
    restore.set()
    await stack.in_phase(run, RunPhase.PAUSED)
    assert stack.trained(run)[-1] == (1, 3)
    for _ in range(2):
        await stack.update(run, names.UPDATE_RESUME)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.COMPLETED, 5)
    assert stack.trained(run)[3:] == [(2, 3), (2, 4), (2, 5)]


async def test_a_stop_while_the_session_is_lost_ends_at_the_checkpoint(stack: Stack, run: str) -> None:
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [LOST]
    train = stack.script.hold(OpKind.TRAIN_STEP, 3)
    handle = await stack.start(stack.spec(9, checkpointing={"every": 2}), run)
    await stack.begun(OpKind.TRAIN_STEP, 3)
    for _ in range(2):
        await stack.update(run, names.UPDATE_STOP)
    train.set()
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.STOPPED, 2)
    assert f"{run}/2/2/restore" not in stack.script.carried_out
