"""Reasoning-gym tasks: disjoint parts, scoring by the task itself, and clear refusals."""

import sys

import pytest

from ratchet.environments.gym import GymEnvironment
from ratchet.environments.protocol import Problem
from ratchet.spec.faults import DataFault, SpecError

TASK = "leg_counting"


def test_training_and_heldout_questions_are_disjoint() -> None:
    environment = GymEnvironment("chain_sum", {"size": 400, "max_terms": 2, "max_digits": 1}, seed=0)
    held = [environment.heldout_problem(index).prompt for index in range(environment.num_heldout)]
    trained = {environment.train_problem(position).prompt for position in range(2000)}
    assert len(held) == len(set(held)) > 0
    assert not trained & set(held)


def test_the_seed_decides_the_problems() -> None:
    def some(seed: int) -> list[str]:
        environment = GymEnvironment(TASK, {}, seed)
        train = [environment.train_problem(position).prompt for position in (0, 1, 10**12)]
        return train + [environment.heldout_problem(index).prompt for index in (2, 0)]

    assert some(7) == some(7)
    assert not set(some(7)) & set(some(8))


def test_an_id_names_the_question() -> None:
    environment = GymEnvironment("chain_sum", {"size": 3}, seed=0)
    found: dict[str, str] = {}
    for position in range(30):
        problem = environment.train_problem(position)
        assert found.setdefault(problem.id, problem.prompt) == problem.prompt
    assert len(found) == len(set(found.values()))


def test_the_task_scores_the_first_line_or_the_whole_text() -> None:
    problem = GymEnvironment(TASK, {}, seed=0).train_problem(0)
    first = GymEnvironment(TASK, {}, seed=0)
    whole = GymEnvironment(TASK, {"answer": "whole"}, seed=0)
    assert first.score(problem, f"\n  {problem.answer} \nbecause").correct
    assert first.score(problem, problem.answer).reward == 1.0
    assert whole.score(problem, f" {problem.answer}\n").correct
    assert not whole.score(problem, f"{problem.answer}\nbecause").correct
    assert not first.score(problem, "none at all").correct


def test_a_task_without_a_single_answer_is_scored_by_its_own_rules() -> None:
    environment = GymEnvironment("graph_color", {}, seed=0)
    problem = environment.train_problem(0)
    wrong = environment.score(problem, "no colouring")
    assert (wrong.correct, wrong.components) == (False, {"score": wrong.reward})


def test_what_cannot_be_scored_is_a_fault_and_no_zero() -> None:
    environment = GymEnvironment(TASK, {}, seed=0)
    with pytest.raises(DataFault, match=r"leg_counting cannot score an answer to problem x \(KeyError"):
        environment.score(Problem(id="x", prompt="?", answer="1", data={"entry": {}}), "1")


def test_too_few_heldout_problems_say_how_many_there_are() -> None:
    environment = GymEnvironment(TASK, {"size": 30}, seed=0)
    held = environment.num_heldout
    environment.heldout_problem(held - 1)
    message = rf"^evaluation\.num_problems: at least {held + 1}, .* has {held} held-out"
    with pytest.raises(SpecError, match=message):
        environment.heldout_problem(held)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("leg_countin", {}, r"^environment\.name: .*no task 'leg_countin' .*did you mean leg_counting"),
        (
            TASK,
            {"max_animal": 3},
            r"^environment\.options\.max_animal: no such .*mean max_animals",
        ),
        (TASK, {"seed": 3}, r"^environment\.options\.seed: no such option"),
        (TASK, {"size": 0}, r"^environment\.options\.size: 0; allowed: "),
        (
            TASK,
            {"answer": "last"},
            r"^environment\.options\.answer: \"last\"; allowed: 'first_line'",
        ),
        (TASK, {"min_animals": 9, "max_animals": 3}, r"^environment\.options: .*leg_counting refuses"),
    ],
)
def test_a_wrong_task_or_option_is_refused_by_name(
    task: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        GymEnvironment(task, options, seed=0)


def test_a_missing_package_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(SpecError, match=r"pip install 'ratchet\[gym\]'"):
        GymEnvironment(TASK, {}, seed=0)


def test_a_task_whose_every_question_is_held_out_is_refused() -> None:
    # A pool of one problem is all held out for one seed in ten.
    alone = (GymEnvironment(TASK, {"size": 1}, seed) for seed in range(200))
    unlucky = next(environment for environment in alone if environment.num_heldout == 1)
    with pytest.raises(SpecError, match=r"^environment\.options: .* outside the held-out part"):
        unlucky.train_problem(0)
