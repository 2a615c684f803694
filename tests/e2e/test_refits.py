"""However weights get from the trainer to the generator: the run ends in the same bits."""

import asyncio

import pytest

from benchmarks.chaos.history import read_history
from ratchet.spec.receipts import RefitReceipt
from tests.e2e.conftest import QUICK, Stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

HTTP = (*QUICK, "refit.transport=http")
DELTA = (*HTTP, "refit.codec=delta")
STORE = (*QUICK, "refit.transport=store", "refit.codec=delta")


def refits(stack: Stack, run: str) -> list[RefitReceipt]:
    done = asyncio.run(read_history(stack.home, run)).operations
    return [each.receipt for each in done if isinstance(each.receipt, RefitReceipt)]


def assert_ended_like(stack: Stack, run: str, other: str) -> None:
    shown, expected = stack.ended(run), stack.show(other)
    assert shown["phase"] == "completed"
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]


def test_over_http_a_run_ends_in_the_same_bits(stack: Stack, undisturbed: str) -> None:
    stack.launch("over-http", *HTTP)
    assert_ended_like(stack, "over-http", undisturbed)
    assert {refit.wire_bytes == refit.num_bytes for refit in refits(stack, "over-http")} == {True}


@pytest.mark.parametrize(("run", "settings"), [("patched", DELTA), ("patched-store", STORE)])
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
@pytest.mark.parametrize("settings", [DELTA, STORE], ids=["http", "store"])
@pytest.mark.parametrize(
    ("victim", "failpoint"), [("trainer", "refit.staged"), ("generator", "refit.loaded")]
)
def test_who_dies_in_a_refit_gets_or_gives_all_of_it_again(
    stack: Stack, undisturbed: str, victim: str, failpoint: str, settings: tuple[str, ...]
) -> None:
    run = f"{victim}-dies-{'store' if settings is STORE else 'http'}"
    stack.failpoints.arm(failpoint, "3 hold")
    stack.launch(run, *settings)
    stack.failpoints.wait_hit(failpoint)
    stack.kill(victim, run)
    stack.failpoints.release(failpoint)
    assert_ended_like(stack, run, undisturbed)
