"""An asynchronous run ends in the bits of the one that nobody touched, whatever dies in it."""

import pytest

from tests.e2e.conftest import QUICK, Stack, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

AHEAD = (*QUICK, "grpo.max_num_steps=5", "checkpointing.every=2")


@pytest.fixture(scope="module")
def ahead(stack: Stack) -> str:
    stack.launch("ahead", *AHEAD, "asynchronous.max_staleness=1")
    assert stack.ended("ahead")["phase"] == "completed"
    return "ahead"


def test_without_staleness_it_ends_in_the_bits_of_the_synchronous_run(stack: Stack, undisturbed: str) -> None:
    stack.launch("no-lookahead", *QUICK, "asynchronous.max_staleness=0")
    shown, expected = stack.ended("no-lookahead"), stack.show(undisturbed)
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]


def test_each_batch_is_of_the_weights_of_the_step_before_the_last(stack: Stack, ahead: str) -> None:
    rows = stack.store.steps(ahead)
    assert [row.step for row in rows] == [1, 2, 3, 4, 5]
    assert [row.rollout_step for row in rows] == [0, 0, 1, 2, 3]
    assert all("discarded_groups" not in row.metrics for row in rows)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("victim", "failpoint", "action"),
    [
        ("generator", "rollout_batch.group", "14 hold"),
        ("trainer", "train_step.leased", "3 hold"),
        ("trainer", "train_step.trained", "4 hold"),
        ("data-plane", "train_step.leased", "4 hold"),
        ("conductor", "refit.loaded", "3 hold"),
    ],
)
def test_a_lost_part_changes_nothing(
    stack: Stack, ahead: str, victim: str, failpoint: str, action: str
) -> None:
    run = f"ahead-{victim}-{failpoint.replace('.', '-').replace('_', '-')}"
    stack.failpoints.arm(failpoint, action)
    stack.launch(run, *AHEAD, "asynchronous.max_staleness=1")
    stack.failpoints.wait_hit(failpoint)
    killed = stack.kill(victim, run)
    stack.failpoints.release(failpoint)
    until(
        f"another {victim}",
        lambda: stack.replaced(victim, run, killed) or stack.phase(run) == "completed",
    )
    shown, expected = stack.ended(run), stack.show(ahead)
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]
    assert [row.step for row in stack.store.steps_on_path(run)] == [1, 2, 3, 4, 5]
