"""The asynchronous loop over real Temporal, store and conductor; the engines follow a script."""

from typing import Any

import pytest

from ratchet.spec import names
from ratchet.spec.faults import ActorLost, InfraFault, RatchetError
from ratchet.spec.ids import OpKind
from ratchet.spec.state import RunPhase, RunStatus
from tests.workflows.test_recovery import undisturbed

Stack = Any  # tests/workflows/conftest.py: Bench

AHEAD = {"max_staleness": 1}
EVERY = {"every": 2}


def weights(stack: Stack, run: str) -> str:
    return stack.store.steps(run)[-1].version_digest


async def test_the_next_batch_is_rolled_out_while_this_one_is_trained(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    rollout = stack.script.hold(OpKind.ROLLOUT_BATCH, 3)
    handle = await stack.start(stack.spec(4, asynchronous=AHEAD), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await stack.begun(OpKind.ROLLOUT_BATCH, 3)
    train.set()
    await stack.on_record(lambda: f"{run}/1/2/train_step" in stack.script.carried_out)
    assert not stack.script.began[OpKind.REFIT, 2].is_set()  # the weights stay while a batch is sampled
    rollout.set()
    assert (await handle.result()).step == 4

    rows = stack.store.steps(run)
    assert [row.cursor_start for row in rows] == [0, 2, 4, 6]
    sampled = [entry.split("/")[2] for entry in stack.script.carried_out if entry.endswith("rollout_batch")]
    assert sampled == ["1", "2", "3", "4"]  # none beyond the last step
    assert rows[-1].version_digest == undisturbed(4)


async def test_without_lookahead_it_is_the_synchronous_loop(stack: Stack, run: str) -> None:
    spec = {"evaluation": {"num_problems": 4, "every": 2}, "checkpointing": EVERY}
    await (await stack.start(stack.spec(3, **spec), f"{run}-sync")).result()
    await (
        await stack.start(stack.spec(3, **spec, asynchronous={"max_staleness": 0}), f"{run}-async")
    ).result()

    def engines(which: str) -> list[str]:
        beside = "commit_checkpoint"  # written beside the rest, whenever
        return [
            entry.split("/", 1)[1]
            for entry in stack.script.carried_out
            if entry.startswith(f"{run}-{which}/") and not entry.endswith(beside)
        ]

    assert engines("async") == engines("sync")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (OpKind.ROLLOUT_BATCH, ActorLost("the trainer died", role="trainer")),
        (OpKind.TRAIN_STEP, ActorLost("the trainer died", role="trainer")),
        (OpKind.REFIT, InfraFault("no route to the generator")),
    ],
    ids=lambda each: getattr(each, "value", ""),
)
async def test_a_loss_at_any_part_of_a_step_changes_nothing(
    stack: Stack, run: str, kind: OpKind, fault: RatchetError
) -> None:
    stack.script.faults[kind, 4] = [fault]
    handle = await stack.start(stack.spec(6, asynchronous=AHEAD, checkpointing=EVERY), run)
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.COMPLETED, 6)
    assert weights(stack, run) == undisturbed(6)


async def test_continuing_as_new_joins_the_batch_that_is_ahead(stack: Stack, run: str) -> None:
    spec = stack.spec(6, asynchronous=AHEAD, runtime={"continue_as_new_every_steps": 1})
    handle = await stack.start(spec, run)
    await handle.result()
    assert (await handle.describe()).run_id != handle.first_execution_run_id
    assert len(stack.script.carried_out) == len(set(stack.script.carried_out))
    assert weights(stack, run) == undisturbed(6)


async def test_a_stop_gives_up_the_batch_that_is_ahead_and_finishes_the_step(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    stack.script.hold(OpKind.ROLLOUT_BATCH, 3)
    handle = await stack.start(stack.spec(6, asynchronous=AHEAD), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await stack.begun(OpKind.ROLLOUT_BATCH, 3)
    await handle.execute_update(names.UPDATE_STOP, result_type=RunStatus)
    train.set()
    result = await handle.result()
    assert (result.phase, result.step) == (RunPhase.STOPPED, 2)
    assert result.checkpoint is not None
    assert result.checkpoint.version.step == 2


async def test_an_extended_run_rolls_on(stack: Stack, run: str) -> None:
    train = stack.script.hold(OpKind.TRAIN_STEP, 2)
    handle = await stack.start(stack.spec(2, asynchronous=AHEAD), run)
    await stack.begun(OpKind.TRAIN_STEP, 2)
    await stack.update(run, names.UPDATE_EXTEND, {"max_num_steps": 4})
    train.set()
    assert (await handle.result()).step == 4
    assert weights(stack, run) == undisturbed(4)
