"""Options of environments: checked by a pydantic model, refused by name (law 10)."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ratchet.spec.imports import nearest
from ratchet.spec.problems import InvalidSpec, SpecProblem, written

Options = TypeVar("Options", bound=BaseModel)

SECTION = "environment.options"


def parse_options(model: type[Options], options: Mapping[str, object]) -> Options:
    """Validate `environment.options`. Raises SpecError with every wrong option."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InvalidSpec([_problem(detail, model) for detail in details]) from None


def unknown_option(key: str, known: Iterable[str]) -> SpecProblem:
    """What to say about an option that does not exist."""
    names = sorted(known)
    return SpecProblem(
        key=f"{SECTION}.{key}", found="no such option", allowed=", ".join(names), hint=nearest(key, names)
    )


def too_few_heldout(asked: int, held: int, fix: str) -> InvalidSpec:
    """The error of an environment that holds fewer held-out problems than an evaluation wants."""
    found = f"at least {asked}, but the environment has {held} held-out problems"
    return InvalidSpec(
        [SpecProblem(key="evaluation.num_problems", found=found, hint=f"lower it to {held}, or {fix}")]
    )


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> SpecProblem:
    if detail["type"] == "extra_forbidden":
        return unknown_option(str(detail["loc"][0]), model.model_fields)
    key = ".".join((SECTION, *map(str, detail["loc"])))
    if detail["type"] == "value_error":
        return SpecProblem(key=key, found=detail["msg"].removeprefix("Value error, "))
    found = "missing" if detail["type"] == "missing" else written(detail["input"])
    allowed = detail["msg"].removeprefix("Input should be ").replace("valid tuple", "list")
    return SpecProblem(key=key, found=found, allowed=allowed)
