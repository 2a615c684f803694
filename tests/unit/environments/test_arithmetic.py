"""Arithmetic: what is asked, what counts as right, and that held-out problems stay unseen."""

import subprocess
import sys
from operator import add, mul, sub

import pytest

from ratchet.environments.arithmetic import EXAMPLES, ArithmeticEnvironment, is_heldout
from ratchet.environments.protocol import Problem
from ratchet.spec.faults import SpecError


def terms(problem: Problem) -> tuple[int, int, str]:
    for operator in "+*":
        a, found, b = problem.id.partition(operator)
        if found:
            return int(a), int(b), operator
    a, _, b = problem.id[1:].partition("-")
    return int(problem.id[0] + a), int(b), "-"


def heldout(environment: ArithmeticEnvironment) -> list[str]:
    return [environment.heldout_problem(index).id for index in range(environment.num_heldout)]


def test_prompt_is_worked_examples_then_the_question() -> None:
    problem = ArithmeticEnvironment({"max_operand": 50}, seed=0).train_problem(0)
    a, b, operator = terms(problem)
    assert problem.prompt == f"3 + 4 = 7\n12 + 5 = 17\n{a} + {b} ="
    assert (problem.answer, operator) == (str(a + b), "+")


def test_a_template_without_blanks_writes_examples_without_blanks() -> None:
    options = {"template": "{a}{op}{b}=", "operators": ["-", "*"], "shots": 2}
    prompt = ArithmeticEnvironment(options, seed=0).train_problem(3).prompt
    assert prompt.startswith("3-4=-1\n12*5=60\n")
    bare = ArithmeticEnvironment({"template": "{a}{op}{b}=", "shots": 0}, seed=0).train_problem(3)
    assert bare.prompt == f"{bare.id}="


@pytest.mark.parametrize(("operator", "compute"), [("+", add), ("-", sub), ("*", mul)])
def test_answers_of_every_operator(operator: str, compute) -> None:
    environment = ArithmeticEnvironment({"operators": [operator], "max_operand": 30}, seed=1)
    for position in range(50):
        problem = environment.train_problem(position)
        a, b, found = terms(problem)
        assert found == operator
        assert problem.answer == str(compute(a, b))


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        (" 17\n9 + 9 = 18", True),
        ("17", True),
        ("17  ", True),
        (" 17.", False),
        ("\n17", False),
        ("17 apples", False),
        ("017", False),
        ("", False),
    ],
)
def test_only_the_exact_first_line_counts(text: str, correct: bool) -> None:
    environment = ArithmeticEnvironment({}, seed=0)
    score = environment.score(Problem(id="12+5", prompt="12 + 5 =", answer="17"), text)
    assert (score.correct, score.reward) == (correct, float(correct))
    assert sum(score.components.values()) == score.reward


def test_training_never_meets_a_heldout_problem() -> None:
    environment = ArithmeticEnvironment({"max_operand": 12, "operators": ["+", "-"]}, seed=5)
    seen = {environment.train_problem(position).id for position in range(4000)}
    kept = set(heldout(environment))
    assert not seen & kept
    # Together they are the whole range: nothing is lost between the two.
    assert seen | kept == {f"{a}{op}{b}" for a in range(13) for b in range(13) for op in "+-"}


def test_the_heldout_part_is_the_same_for_every_seed_and_process() -> None:
    one, two = (ArithmeticEnvironment({"max_operand": 20}, seed=seed) for seed in (1, 2))
    assert sorted(heldout(one)) == sorted(heldout(two))
    assert heldout(one) != heldout(two)
    code = """
from ratchet.environments.arithmetic import is_heldout
print([is_heldout(a, 7, "+") for a in range(99)])
"""
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str([is_heldout(a, 7, "+") for a in range(99)])
    # A model that was warm-started on nine tenths of yesterday's problems must never meet another tenth.
    assert [a for a in range(99) if is_heldout(a, 7, "+")] == [12, 23, 39, 40, 65, 70, 85, 93]


def test_the_seed_decides_the_problems() -> None:
    def first(seed: int) -> list[str]:
        environment = ArithmeticEnvironment({}, seed)
        return [environment.train_problem(position).id for position in range(20)]

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_worked_examples_are_never_held_out() -> None:
    assert not any(is_heldout(a, b, operator) for a, b in EXAMPLES for operator in "+-*")


def test_a_huge_range_has_distinct_heldout_problems_too() -> None:
    environment = ArithmeticEnvironment({"max_operand": 10**9}, seed=0)
    found = heldout(environment)
    assert len(found) == len(set(found)) >= 1000
    assert all(is_heldout(*terms(environment.heldout_problem(index))) for index in range(200))


def test_too_few_heldout_problems_say_how_many_there_are() -> None:
    environment = ArithmeticEnvironment({"max_operand": 5}, seed=0)
    held = environment.num_heldout
    assert 0 < held < 36
    with pytest.raises(SpecError) as caught:
        environment.heldout_problem(held)
    message = str(caught.value)
    assert message.startswith(f"evaluation.num_problems: at least {held + 1}, ")
    assert f"{held} held-out" in message
    assert "environment.options.max_operand" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_operan": 9}, r"environment\.options\.max_operan: no such option; .*did you mean max_operand"),
        ({"shots": -1}, r"environment\.options\.shots: -1; allowed: .*0"),
        ({"shots": 99}, r"environment\.options\.shots: 99; allowed: .*6"),
        ({"operators": ["/"]}, r"environment\.options\.operators\.0: \"/\"; allowed: '\+', '-' or '\*'"),
        ({"operators": []}, r"operators \[\] must name at least one"),
        ({"operators": ["+", "+"]}, r"none twice"),
        ({"min_operand": 9, "max_operand": 3}, r"min_operand \(9\) is above max_operand \(3\)"),
        ({"template": "{a} + {b}"}, r"template .* must hold \{a\}, \{op\} and \{b\}"),
        ({"template": "{a} {op} {b} {c}"}, r"template .* must hold"),
        ({"template": "{a} {op} {b"}, r"template .* must hold"),
        ({"template": "{a:>x} {op} {b}"}, r"template .* must hold"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        ArithmeticEnvironment(options, seed=0)
    assert str(caught.value).startswith("environment.options")
    assert "\n" not in str(caught.value)


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(SpecError, match=r"shots.*colour|colour.*shots"):
        ArithmeticEnvironment({"shots": "many", "colour": "red"}, seed=0)


def test_a_range_that_is_all_held_out_is_refused() -> None:
    alone = next(a for a in range(1000) if is_heldout(a, a, "+"))
    with pytest.raises(SpecError, match="none is left to train on"):
        ArithmeticEnvironment({"min_operand": alone, "max_operand": alone}, seed=0)
