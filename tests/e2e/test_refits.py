"""However weights get from the trainer to the generator: the run ends in the same bits."""

import asyncio

import pytest

from benchmarks.chaos.history import read_history
from ratchet.spec.receipts import RefitReceipt
from tests.e2e.conftest import QUICK, Stack

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

HTTP, COLLECTIVE, STORE = (
    (*QUICK, f"refit.transport={transport}", "refit.codec=delta")
    for transport in ("http", "collective", "store")
)


def refits(stack: Stack, run: str) -> list[RefitReceipt]:
    done = asyncio.run(read_history(stack.home, run)).operations
    return [each.receipt for each in done if isinstance(each.receipt, RefitReceipt)]


def assert_ended_like(stack: Stack, run: str, other: str) -> None:
    shown, expected = stack.ended(run), stack.show(other)
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]


@pytest.mark.parametrize("transport", ["http", "collective"])
def test_over_a_wire_a_run_ends_in_the_same_bits(stack: Stack, undisturbed: str, transport: str) -> None:
    run = f"over-{transport}"
    stack.launch(run, *QUICK, f"refit.transport={transport}")
    assert_ended_like(stack, run, undisturbed)
    assert {refit.wire_bytes == refit.num_bytes for refit in refits(stack, run)} == {True}


@pytest.mark.parametrize(
    ("run", "settings"),
    [("patched-http", HTTP), ("patched-collective", COLLECTIVE), ("patched-store", STORE)],
)
def test_patches_are_less_and_end_in_the_same_bits(
    stack: Stack, undisturbed: str, run: str, settings: tuple[str, ...]
) -> None:
    stack.launch(run, *settings)
    assert_ended_like(stack, run, undisturbed)
    first, *later = refits(stack, run)
    assert first.wire_bytes == first.num_bytes
    assert later
    assert all(0 < refit.wire_bytes < refit.num_bytes for refit in later)


@pytest.mark.chaos
@pytest.mark.parametrize("settings", [HTTP, COLLECTIVE, STORE], ids=["http", "collective", "store"])
@pytest.mark.parametrize(
    ("victim", "failpoint"), [("trainer", "refit.staged"), ("generator", "refit.loaded")]
)
def test_who_dies_in_a_refit_gets_or_gives_all_of_it_again(
    stack: Stack, undisturbed: str, victim: str, failpoint: str, settings: tuple[str, ...]
) -> None:
    run = f"{victim}-dies-{settings[-2].partition('=')[2]}"
    stack.failpoints.arm(failpoint, "3 hold")
    stack.launch(run, *settings)
    stack.failpoints.wait_hit(failpoint)
    stack.kill(victim, run)
    stack.failpoints.release(failpoint)
    assert_ended_like(stack, run, undisturbed)
