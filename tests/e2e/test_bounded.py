"""Whatever becomes of rollouts, a streaming run ends, and says why."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.journal.reader import JournalIndex
from ratchet.spec.ranges import keys_of
from tests.e2e.conftest import Stack, until
from tests.e2e.remote_checks import CheckServer
from tests.e2e.test_streaming import (
    PROMPTS,
    STALENESS,
    STEPS,
    STREAM,
    assert_accounted_for,
    finished_more_than_once,
    receipts,
)

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[CheckServer]:
    server = CheckServer(**getattr(request, "param", {}))
    yield server
    server.close()


def checked_by(server: CheckServer) -> tuple[str, ...]:
    name = "environment.name=tests.e2e.remote_checks:RemoteChecks"
    settings = ("environment.timeout_s=1", "evaluation.num_problems=0")
    return (*STREAM, name, f"environment.options.url={server.url}", *settings)


def failure(shown: dict[str, Any]) -> str:
    assert shown["phase"] == "failed"
    return shown["fault"]["message"]


@pytest.mark.parametrize("server", [{"silent": {5}}], indirect=True)
def test_an_answer_that_never_comes_ends_the_run_with_its_cause(stack: Stack, server: CheckServer) -> None:
    """Where every prompt has to be trained on. Others let it become too old, and throw it away."""
    stack.launch("never", *checked_by(server), "asynchronous.sampler=weight_fifo")
    message = failure(stack.ended("never"))
    silent = server.asked[5]
    assert f"gave no score for an answer to {silent} in 5 tries" in message
    assert "no answer within 1 s (environment.timeout_s)" in message


@pytest.mark.parametrize("server", [{"refused": {5}}], indirect=True)
def test_a_prompt_that_cannot_be_scored_ends_the_run_with_its_cause(
    stack: Stack, server: CheckServer
) -> None:
    stack.launch("refused-one", *checked_by(server))
    message = failure(stack.ended("refused-one"))
    assert f"{server.asked[5]} cannot be checked" in message


@pytest.mark.parametrize("server", [{"refused": {5, 9}}], indirect=True)
def test_prompts_that_may_be_given_up_are_accounted_for(stack: Stack, server: CheckServer) -> None:
    stack.launch("given-up", *checked_by(server), "environment.max_dropped=2")
    assert stack.ended("given-up")["phase"] == "completed"
    trained = [key for step in receipts(stack, "given-up") for key in keys_of(step.trained)]
    journal = JournalIndex(stack.home.run_folder("given-up") / "journal")
    assert len(trained) == len(set(trained)) == STEPS * PROMPTS
    assert len(journal.tombstones()) == 2
    assert journal.tombstones().keys().isdisjoint(trained)


def test_an_environment_server_that_is_away_costs_nothing_but_time(stack: Stack, server: CheckServer) -> None:
    stack.launch("restarted", *checked_by(server))
    until("some rollouts", lambda: len(server.asked) >= PROMPTS)
    server.away = True
    until("rollouts that were turned away", lambda: server.turned_away >= PROMPTS)
    server.away = False
    shown = stack.ended("restarted")
    assert (shown["phase"], shown["incarnation"]) == ("completed", 1)
    assert_accounted_for(stack, "restarted")


@pytest.mark.parametrize(("rows", "times"), [(3, 8), (12, 2)])
def test_a_small_file_is_passed_over_as_often_as_the_run_asks(
    stack: Stack, tmp_path: Path, rows: int, times: int
) -> None:
    """Fewer rows than a step has prompts, and exactly two passes."""
    run, file = f"rows-{rows}", tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}+{n}=", "answer": 2 * n}) + "\n" for n in range(rows)))
    options = json.dumps({"path": str(file)})
    # A sampler that throws nothing away: what is trained is what was drawn.
    sampler = "asynchronous.sampler=weight_fifo"
    data = ("environment.name=dataset", f"environment.options={options}", "evaluation.num_problems=0")
    stack.launch(run, *STREAM, sampler, *data)
    assert stack.ended(run)["phase"] == "completed"
    keys = [key for step in receipts(stack, run) for key in keys_of(step.trained)]
    assert sorted(keys) == list(range(STEPS * PROMPTS))
    groups = JournalIndex(stack.home.run_folder(run) / "journal").groups(keys)
    assert set(Counter(group.problem_id for group in groups.values()).values()) == {times}


@pytest.mark.parametrize("victim", ["generator", "trainer", "ray"])
def test_a_loss_while_the_buffer_is_full_loses_no_group(stack: Stack, victim: str) -> None:
    """The generator has nothing to do then, and nothing may be begun before a step is done."""
    run = f"full-{victim}"
    stack.failpoints.arm("train_step.trained", "2 hold")
    stack.launch(run, *STREAM)
    stack.failpoints.wait_hit("train_step.trained")
    journal = JournalIndex(stack.home.run_folder(run) / "journal")

    def finished() -> int:
        journal.refresh()
        return len(journal.keys())

    # The first step's, and as many as the window holds beyond them.
    until("a full buffer", lambda: finished() == PROMPTS * (1 + STALENESS + 1))
    killed = stack.kill(victim, run)
    stack.failpoints.release("train_step.trained")
    until(f"another {victim}", lambda: stack.replaced(victim, run, killed))
    assert stack.ended(run)["phase"] == "completed"
    assert_accounted_for(stack, run)
    assert finished_more_than_once(stack, run) == []
