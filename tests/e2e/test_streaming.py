"""Steps that take groups in as they are finished: whatever dies, every prompt is trained once, none too late,
and none is sampled again that was finished."""

import asyncio
from collections import Counter

import pytest

from benchmarks.chaos.history import read_history
from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.journal.segment import list_incarnations, list_segments, scan
from ratchet.spec.ranges import keys_of
from ratchet.spec.receipts import TrainReceipt
from tests.e2e.conftest import QUICK, Stack, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STEPS, PROMPTS, STALENESS = 6, 4, 2
STREAM = (
    *QUICK,
    f"grpo.max_num_steps={STEPS}",
    f"grpo.num_prompts_per_step={PROMPTS}",
    "checkpointing.every=2",
    "asynchronous.sampler=ready_first",
    f"asynchronous.max_staleness={STALENESS}",
)


def receipts(stack: Stack, run: str) -> list[TrainReceipt]:
    """Of the steps on the way to the head."""
    path = {(row.incarnation, row.step) for row in stack.store.steps_on_path(run)}
    done = asyncio.run(read_history(stack.home, run)).operations
    trained = [each.receipt for each in done if isinstance(each.receipt, TrainReceipt)]
    return [each for each in trained if (each.version.incarnation, each.version.step) in path]


def assert_accounted_for(stack: Stack, run: str) -> None:
    steps = receipts(stack, run)
    trained = Counter(key for step in steps for key in keys_of(step.trained))
    evicted = {key for step in steps for key in keys_of(step.evicted)}
    assert set(trained.values()) == {1}
    assert sum(trained.values()) == STEPS * PROMPTS
    assert trained.keys().isdisjoint(evicted)
    manifests, _ = list_manifests(LocalArtifactStore(stack.home.artifacts), run)
    over = {*range(manifests[0].cursor), *keys_of(manifests[0].finished)}
    assert over == trained.keys() | evicted
    assert all(step.metrics["staleness_max"] <= STALENESS for step in steps)


def finished_more_than_once(stack: Stack, run: str) -> list[int]:
    folder = stack.home.run_folder(run) / "journal"
    counts = Counter(
        key
        for incarnation in list_incarnations(folder)
        for segment in list_segments(folder, incarnation)
        for span in scan(segment.path(folder))
        for key in span.keys
    )
    return sorted(key for key, count in counts.items() if count > 1)


@pytest.mark.parametrize(
    "refit",
    ["keep", pytest.param("drain", marks=pytest.mark.chaos), pytest.param("abort", marks=pytest.mark.chaos)],
)
def test_every_prompt_is_trained_once(stack: Stack, refit: str) -> None:
    run = f"stream-{refit}"
    stack.launch(run, *STREAM, f"asynchronous.refit={refit}")
    assert stack.ended(run)["phase"] == "completed"
    assert_accounted_for(stack, run)
    assert [row.step for row in stack.store.steps(run)] == list(range(1, STEPS + 1))


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("victim", "failpoint", "action"),
    [
        ("generator", "rollout_batch.group", "14 hold"),
        ("trainer", "train_step.leased", "4 hold"),
        ("trainer", "train_step.trained", "4 hold"),
        ("data-plane", "train_step.leased", "5 hold"),
        ("conductor", "refit.loaded", "3 hold"),
        ("ray", "rollout_batch.group", "14 hold"),
    ],
)
def test_a_lost_part_loses_no_prompt(stack: Stack, victim: str, failpoint: str, action: str) -> None:
    run = f"stream-{victim}-{failpoint.replace('.', '-').replace('_', '-')}"
    stack.failpoints.arm(failpoint, action)
    stack.launch(run, *STREAM, "asynchronous.refit=keep")
    stack.failpoints.wait_hit(failpoint)
    killed = stack.kill(victim, run)
    stack.failpoints.release(failpoint)
    until(
        f"another {victim}",
        lambda: stack.replaced(victim, run, killed) or stack.phase(run) == "completed",
    )
    assert stack.ended(run)["phase"] == "completed"
    assert_accounted_for(stack, run)
    assert finished_more_than_once(stack, run) == []
