"""What can be known to be wrong before a run starts, beyond types and bounds: models, engines, environments,
sinks."""

from ratchet.environments.registry import check_environment
from ratchet.models.names import check_model_name
from ratchet.rollouts.samplers import create_sampler
from ratchet.sinks.installed import check_installed
from ratchet.spec.backends import GENERATORS, TRAINERS
from ratchet.spec.faults import DataFault, RatchetError, SpecError
from ratchet.spec.problems import InvalidSpec, SpecProblem
from ratchet.spec.run_spec import RunSpec


def check_runnable(spec: RunSpec) -> None:
    """Look up what a spec names, without loading it. Raises InvalidSpec with every problem."""
    problems: list[SpecProblem] = []
    try:
        check_model_name(spec.policy.model)
    except SpecError as error:
        problems += _problems("policy.model", error)
    try:
        check_environment(spec.environment, spec.seed, spec.evaluation.num_problems)
    except (SpecError, DataFault) as error:
        problems += _problems("environment", error)
    for registry, name in ((TRAINERS, spec.policy.backend), (GENERATORS, spec.generation.backend)):
        try:
            registry.check(name)
        except InvalidSpec as error:
            problems += error.problems
    if spec.asynchronous:
        try:
            create_sampler(spec.asynchronous)
        except SpecError as error:
            problems += _problems("asynchronous.sampler", error)
    try:
        check_installed(spec)
    except InvalidSpec as error:
        problems += error.problems
    if problems:
        raise InvalidSpec(problems)


def _problems(section: str, error: RatchetError) -> list[SpecProblem]:
    """The error's own problems, or its message as one."""
    if isinstance(error, InvalidSpec):
        return list(error.problems)
    key, separator, found = str(error).partition(": ")
    if separator and " " not in key:
        return [SpecProblem(key=key, found=found)]
    return [SpecProblem(key=section, found=str(error))]
