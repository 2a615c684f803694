"""Promise 2: lose the trainer, or the whole cluster, and it costs re-training alone."""

from collections import Counter

import pytest

from ratchet.journal.reader import JournalIndex
from ratchet.journal.segment import list_incarnations, list_segments, read_groups, scan
from tests.e2e.conftest import QUICK, Stack

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(300)]

SETTINGS = (*QUICK[:3], "grpo.max_num_steps=4", "evaluation.num_problems=0", "checkpointing.every=2")
MOMENTS = {
    # In step 4, past the checkpoint of step 2; and before its manifest is there.
    "mid-train": ("train_step.leased", "4 hold"),
    "mid-commit": ("commit_checkpoint.written", "1 hold"),
}

LOST = {"trainer": "trainer", "ray": "ray cluster"}
"""What `run show` calls it."""


@pytest.fixture(scope="module")
def quiet(stack: Stack) -> str:
    """The run nobody touches."""
    stack.launch("quiet", *SETTINGS)
    assert stack.ended("quiet")["phase"] == "completed"
    return "quiet"


# Two of the many; benchmarks.chaos has the rest.
@pytest.mark.parametrize(("victim", "moment"), [("trainer", "mid-commit"), ("ray", "mid-train")])
def test_what_held_the_head_is_lost_and_the_run_ends_the_same(
    stack: Stack, quiet: str, victim: str, moment: str
) -> None:
    run = f"{victim}-{moment}"
    failpoint, action = MOMENTS[moment]
    stack.failpoints.arm(failpoint, action)
    stack.launch(run, *SETTINGS)
    stack.failpoints.wait_hit(failpoint)
    stack.kill(victim, run)
    stack.failpoints.release(failpoint)

    shown, expected = stack.ended(run), stack.show(quiet)
    assert shown["phase"] == "completed"
    assert shown["incarnation"] == 2
    assert shown["last_checkpoint"]["digest"] == expected["last_checkpoint"]["digest"]
    assert LOST[victim] in {incident["lost"] for incident in shown["incidents"]}

    path = stack.store.steps_on_path(run)
    assert [row.step for row in path] == [1, 2, 3, 4]
    assert not _generated_twice(stack, run)
    retrained = [row for row in path if row.incarnation == 2]
    done_before = {row.step for row in stack.store.steps(run) if row.incarnation == 1}
    for row in retrained:
        if row.step in done_before:
            assert row.replayed_groups == row.num_groups


def _generated_twice(stack: Stack, run: str) -> list[int]:
    """Keys that more than one journal record counts for."""
    folder = stack.home.run_folder(run) / "journal"
    JournalIndex(folder)  # whole, or this raises
    records: Counter[int] = Counter()
    for incarnation in list_incarnations(folder):
        for segment in list_segments(folder, incarnation):
            path = segment.path(folder)
            for span in scan(path):
                records.update(group.key for group in read_groups(path, span.start, span.end))
    return [key for key, count in records.items() if count > 1]
