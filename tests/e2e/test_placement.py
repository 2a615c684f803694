"""Trainer and generator that take turns on one device."""

import pytest

from tests.e2e.conftest import QUICK, Stack

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

COLOCATED = (*QUICK, "placement.kind=colocated")


def test_a_colocated_run_ends_in_the_same_bits(stack: Stack, undisturbed: str) -> None:
    stack.launch("colocated", *COLOCATED)
    shown = stack.ended("colocated")
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == stack.show(undisturbed)["last_checkpoint"]["digest"]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("victim", "failpoint", "action"),
    [("trainer", "train_step.backward", "3 hold"), ("generator", "rollout_batch.group", "6 hold")],
)
def test_who_dies_in_its_turn_leaves_it_to_the_other(
    stack: Stack, undisturbed: str, victim: str, failpoint: str, action: str
) -> None:
    run = f"colocated-{victim}"
    stack.failpoints.arm(failpoint, action)
    stack.launch(run, *COLOCATED)
    stack.failpoints.wait_hit(failpoint)
    stack.kill(victim, run)
    stack.failpoints.release(failpoint)
    shown = stack.ended(run)
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == stack.show(undisturbed)["last_checkpoint"]["digest"]
