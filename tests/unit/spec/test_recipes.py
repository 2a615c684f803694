"""The recipes that people start from can be run, and the examples in the API's documentation too."""

from pathlib import Path

import pytest

from ratchet.environments.registry import check_environment
from ratchet.preflight import check_runnable
from ratchet.spec.loading import load_spec, spec_from_mapping
from ratchet.spec.views import LaunchRequest

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_and_named_like_its_file(path: Path) -> None:
    spec = load_spec(path)
    assert spec.name == path.stem
    check_environment(spec.environment, spec.seed, spec.evaluation.num_problems)


def test_tiny_addition_is_set_up_to_be_bit_identical() -> None:
    spec = load_spec(RECIPES[0].parent / "tiny-addition.yaml")
    assert spec.generation.deterministic
    assert spec.runtime.threads == 1
    check_runnable(spec)


def test_the_documented_launch_request_is_a_valid_one() -> None:
    schema = LaunchRequest.model_json_schema()
    for example in schema["examples"]:
        request = LaunchRequest.model_validate(example)
        check_runnable(spec_from_mapping(request.spec))
