"""From `environment.name` to an environment."""

from ratchet.environments.arithmetic import ArithmeticEnvironment
from ratchet.environments.dataset import DatasetEnvironment
from ratchet.environments.gym import GymEnvironment
from ratchet.environments.options import SECTION
from ratchet.environments.protocol import Environment
from ratchet.spec.faults import RatchetError
from ratchet.spec.imports import load_class
from ratchet.spec.problems import InvalidSpec, SpecProblem, written
from ratchet.spec.run_spec import EnvironmentSpec

ARITHMETIC = "arithmetic"
DATASET = "dataset"
REASONING_GYM = "reasoning-gym"


def create_environment(spec: EnvironmentSpec, seed: int) -> Environment:
    """Build the environment a spec names. Raises SpecError naming the key, with the nearest known name."""
    head, _, tail = spec.name.partition(":")
    if spec.name == ARITHMETIC:
        return ArithmeticEnvironment(spec.options, seed)
    if spec.name == DATASET:
        return DatasetEnvironment(spec.options, seed)
    if head == REASONING_GYM and tail:
        return GymEnvironment(tail, spec.options, seed)
    factory = load_class(
        "environment.name",
        spec.name,
        allowed=f"{ARITHMETIC}, {DATASET}, {REASONING_GYM}:<task>, or module:Class of your own",
        known=[ARITHMETIC, DATASET, REASONING_GYM],
    )
    try:
        return factory(spec.options, seed)
    except RatchetError:
        raise
    except Exception as error:
        found = f"{written(spec.options)}, which {spec.name} refuses"
        raise _refusal(SECTION, found, f"{type(error).__name__}: {error}") from error


def check_environment(spec: EnvironmentSpec, seed: int, num_heldout: int) -> None:
    """Make a training problem and the last of `num_heldout` held-out ones, so that it is the launch that
    fails, not the run. Raises SpecError, or DataFault if a problem cannot be made."""
    environment = create_environment(spec, seed)
    environment.train_problem(0)
    if num_heldout:
        environment.heldout_problem(num_heldout - 1)


def _refusal(key: str, found: str, hint: str) -> InvalidSpec:
    return InvalidSpec([SpecProblem(key=key, found=found, hint=hint)])
