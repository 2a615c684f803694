"""Your own data: a run killed in a later pass trains the same prompts in the same order."""

import json
from pathlib import Path

import pytest

from ratchet.journal.reader import JournalIndex
from tests.e2e.conftest import QUICK, Stack

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(400)]

ROWS, PROMPTS, STEPS = 32, 16, 5
"""Two steps a pass: steps 3 and 4 are the second, 5 is in the third."""


def _settings(rows: Path) -> list[str]:
    return [
        *(setting for setting in QUICK if not setting.startswith(("grpo.", "evaluation.", "checkpointing."))),
        f"grpo.num_prompts_per_step={PROMPTS}",
        "grpo.num_generations_per_prompt=2",
        f"grpo.max_num_steps={STEPS}",
        "evaluation.num_problems=0",
        "checkpointing.every=1",
        "environment.name=dataset",
        f"environment.options={json.dumps({'path': str(rows)})}",
    ]


def _trained(stack: Stack, run: str) -> list[str]:
    """The problems on the path to the head, in the order they were trained on."""
    journal = JournalIndex(stack.home.run_folder(run) / "journal")
    keys = [key for row in stack.store.steps_on_path(run) for key in range(row.cursor_start, row.cursor_end)]
    groups = journal.groups(keys)
    return [groups[key].problem_id for key in keys]


def test_killed_in_its_second_and_third_pass_a_run_trains_the_same_prompts_in_the_same_order(
    stack: Stack, tmp_path: Path
) -> None:
    rows = tmp_path / "sums.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}+{n}=", "answer": 2 * n}) + "\n" for n in range(ROWS)))
    settings = _settings(rows)
    stack.launch("passes-quiet", *settings)
    assert stack.ended("passes-quiet")["phase"] == "completed"

    # The third step of a trainer: step 3 in the second pass, and, for the one that goes on from the
    # checkpoint of step 2, step 5 in the third.
    stack.failpoints.arm("train_step.leased", "3 hold")
    stack.launch("passes", *settings)
    for hits, victim in enumerate(["trainer", "ray"], 1):
        stack.failpoints.wait_hit("train_step.leased", hits=hits)
        stack.kill(victim, "passes")
    shown = stack.ended("passes")
    assert (shown["phase"], shown["incarnation"]) == ("completed", 3)

    expected = _trained(stack, "passes-quiet")
    passes = [expected[start : start + ROWS] for start in range(0, len(expected), ROWS)]
    assert all(len(set(each)) == len(each) for each in passes)
    assert len({tuple(each[: len(passes[-1])]) for each in passes}) == len(passes), "each pass has its order"
    assert _trained(stack, "passes") == expected
    digest = stack.show("passes-quiet")["last_checkpoint"]["digest"]
    assert shown["last_checkpoint"]["digest"] == digest
