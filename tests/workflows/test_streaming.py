"""The streaming loop over real Temporal, store and conductor; the engines follow a script."""

import random
from typing import Any

import pytest

from ratchet.spec import names
from ratchet.spec.faults import ActorLost, InfraFault, RatchetError
from ratchet.spec.ids import OpKind
from ratchet.spec.ranges import keys_of
from ratchet.spec.state import RunPhase, RunStatus

Stack = Any  # tests/workflows/conftest.py: Bench

STREAM = {"sampler": "ready_first", "refit": "keep", "max_staleness": 2}
EVERY = {"every": 2}
PROMPTS = 2
DEATHS = 10


def assert_each_once(stack: Stack, run: str, steps: int) -> None:
    """A step's worth of prompts in every step, none twice, and none from beyond the window."""
    keys = trained(stack, run)
    assert len(keys) == len(set(keys)) == steps * PROMPTS
    assert set(keys) <= set(range((steps + STREAM["max_staleness"]) * PROMPTS))


def trained(stack: Stack, run: str) -> list[int]:
    """Positions that the run's weights were trained on, in the order of its steps."""
    path = stack.store.steps_on_path(run)
    ops = [f"{run}/{row.incarnation}/{row.step}/train_step" for row in path]
    return [key for op in ops for key in keys_of(stack.script.trained[op])]


async def test_where_nothing_is_thrown_away_no_prompt_is_drawn_for_nothing(stack: Stack, run: str) -> None:
    fifo = STREAM | {"sampler": "weight_fifo"}
    await (await stack.start(stack.spec(5, asynchronous=fifo), run)).result()
    assert sorted(trained(stack, run)) == list(range(5 * PROMPTS))


async def test_steps_are_made_of_what_is_finished(stack: Stack, run: str) -> None:
    straggler = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    handle = await stack.start(stack.spec(5, asynchronous=STREAM), run)
    await stack.begun(OpKind.ROLLOUT_BATCH, 4)  # opened once two steps were done without the first batch
    straggler.set()
    assert (await handle.result()).step == 5
    assert sorted(trained(stack, run)[:4]) == [2, 3, 4, 5], "in the order in which they were finished"
    assert_each_once(stack, run, 5)


async def test_no_more_is_begun_than_the_buffer_holds(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 1)
    handle = await stack.start(stack.spec(6, asynchronous=STREAM), run)
    await stack.begun(OpKind.TRAIN_STEP, 1)
    await stack.on_record(lambda: f"{run}/1/3/rollout_batch" in stack.script.carried_out)
    assert not stack.script.began[OpKind.ROLLOUT_BATCH, 4].is_set()
    train.set()
    assert (await handle.result()).step == 6
    assert_each_once(stack, run, 6)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (OpKind.ROLLOUT_BATCH, ActorLost("the trainer died", role="trainer")),
        (OpKind.TRAIN_STEP, ActorLost("the trainer died", role="trainer")),
        (OpKind.REFIT, InfraFault("no route to the generator")),
    ],
    ids=lambda each: getattr(each, "value", ""),
)
async def test_a_loss_at_any_part_of_a_step_loses_no_prompt(
    stack: Stack, run: str, kind: OpKind, fault: RatchetError
) -> None:
    stack.script.faults[kind, 4] = [fault]
    handle = await stack.start(stack.spec(6, asynchronous=STREAM, checkpointing=EVERY), run)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.COMPLETED, 6)
    assert_each_once(stack, run, 6)


async def test_what_was_trained_out_of_turn_is_not_trained_again_after_a_loss(stack: Stack, run: str) -> None:
    straggler = stack.script.hold(OpKind.ROLLOUT_BATCH, 1)
    stack.script.faults[OpKind.TRAIN_STEP, 3] = [ActorLost("the trainer died", role="trainer")]
    spec = stack.spec(6, asynchronous=STREAM, checkpointing={"every": 1})
    handle = await stack.start(spec, run)
    await stack.begun(OpKind.TRAIN_STEP, 3)
    straggler.set()
    result = await handle.result()
    assert result.step == 6
    assert stack.store.get_run(run).incarnation == 2
    assert_each_once(stack, run, 6)


async def test_continuing_as_new_joins_what_is_open(stack: Stack, run: str) -> None:
    spec = stack.spec(6, asynchronous=STREAM, runtime={"continue_as_new_every_steps": 1})
    handle = await stack.start(spec, run)
    await handle.result()
    assert (await handle.describe()).run_id != handle.first_execution_run_id
    assert len(stack.script.carried_out) == len(set(stack.script.carried_out))
    assert_each_once(stack, run, 6)


async def test_a_stop_ends_a_step_that_waits_for_groups(stack: Stack, run: str) -> None:
    for step in (2, 3, 4):
        stack.script.hold(OpKind.ROLLOUT_BATCH, step)
    handle = await stack.start(stack.spec(6, asynchronous=STREAM), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await handle.execute_update(names.UPDATE_STOP, result_type=RunStatus)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.STOPPED, 1)
    assert result.checkpoint is not None
    assert result.checkpoint.version.step == 1


async def test_an_extended_run_draws_on(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(stack.spec(2, asynchronous=STREAM), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await stack.update(run, names.UPDATE_EXTEND, {"max_num_steps": 4})
    train.set()
    assert (await handle.result()).step == 4
    assert_each_once(stack, run, 4)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(3, 10))]
)
async def test_no_prompt_is_lost_or_trained_twice_however_often_the_trainer_dies(
    stack: Stack, run: str, seed: int
) -> None:
    """Ten deaths a run, a hundred in all, at operations that chance chooses."""
    chance, steps = random.Random(seed), 12
    kinds = [OpKind.TRAIN_STEP, OpKind.REFIT, OpKind.SNAPSHOT]
    for step in chance.sample(range(1, steps + 1), DEATHS):
        # Batches are rolled out together: deaths in several would be recoveries without a step in between.
        kind = OpKind.ROLLOUT_BATCH if step % 4 == 0 else chance.choice(kinds)
        stack.script.faults[kind, step] = [ActorLost("the trainer died", role="trainer")]
    sampler = chance.choice(["ready_first", "weight_fifo", "in_order"])
    spec = stack.spec(
        steps,
        asynchronous=STREAM | {"sampler": sampler},
        checkpointing={"every": chance.randint(1, 3)},
        runtime={"continue_as_new_every_steps": chance.randint(2, 8)},
    )
    result = await (await stack.start(spec, run)).result()
    assert (result.phase, result.step) == (RunPhase.COMPLETED, steps)
    assert_each_once(stack, run, steps)
    if sampler != "ready_first":
        assert sorted(trained(stack, run)) == list(range(steps * PROMPTS))
