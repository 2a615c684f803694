"""From a name in the spec to an environment, or to one line that says what is wrong."""

from pathlib import Path

import pytest

from ratchet.environments.arithmetic import ArithmeticEnvironment
from ratchet.environments.registry import check_environment, create_environment
from ratchet.spec.faults import SpecError
from ratchet.spec.run_spec import EnvironmentSpec

PARITY = """
from ratchet.environments.protocol import Problem, Score

class Parity:
    num_heldout = 1

    def __init__(self, options, seed):
        self.word = options["word"]
        self.seed = seed

    def train_problem(self, position):
        return Problem(id=str(position), prompt=f"{self.word} {self.seed} {position}", answer="even")

    heldout_problem = train_problem

    def score(self, problem, text):
        return Score(reward=0.5, correct=False)
"""


@pytest.fixture
def parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "parity_for_test.py").write_text(PARITY)
    (tmp_path / "broken_for_test.py").write_text("import parity_for_test\nraise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "parity_for_test:Parity"


def test_built_in_names() -> None:
    arithmetic = create_environment(EnvironmentSpec(name="arithmetic", options={"max_operand": 9}), seed=1)
    assert isinstance(arithmetic, ArithmeticEnvironment)
    gym = create_environment(EnvironmentSpec(name="reasoning-gym:leg_counting"), seed=1)
    assert "legs" in gym.train_problem(0).prompt


def test_a_class_of_ones_own_gets_options_and_seed(parity: str) -> None:
    environment = create_environment(EnvironmentSpec(name=parity, options={"word": "is"}), seed=4)
    assert environment.train_problem(9).prompt == "is 4 9"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "arithmatic",
            r'^environment\.name: "arithmatic"; allowed: arithmetic, .*mean arithmetic\?',
        ),
        ("reasoning-gym", r"^environment\.name: .*reasoning-gym:<task>"),
        ("reasoning-gym:", r"^environment\.name: .*reasoning-gym:<task>"),
        (":Class", r"^environment\.name: .*module:Class"),
        ("nowhere.at.all:Class", r"^environment\.name: .*ModuleNotFoundError"),
        ("broken_for_test:Class", r"^environment\.name: .*RuntimeError: no licence"),
        ("parity_for_test:Parety", r"^environment\.name: .*has no class Parety \(did you mean Parity\?\)"),
        (
            "parity_for_test:Parity",
            r"^environment\.options: \{\}, which parity.* refuses \(KeyError",
        ),
    ],
)
@pytest.mark.usefixtures("parity")
def test_a_wrong_name_is_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        create_environment(EnvironmentSpec(name=name), seed=0)


def test_a_launch_learns_of_missing_heldout_problems() -> None:
    small = EnvironmentSpec(name="arithmetic", options={"max_operand": 5})
    check_environment(small, seed=0, num_heldout=1)
    with pytest.raises(SpecError, match=r"^evaluation\.num_problems: at least 128"):
        check_environment(small, seed=0, num_heldout=128)
