"""What may change while a run goes on, and what is refused by name."""

import pytest

from ratchet.spec.faults import SpecError
from ratchet.spec.hyperparameters import CHANGEABLE, with_values
from ratchet.spec.run_spec import RunSpec

SPEC = RunSpec.model_validate(
    {
        "name": "tiny",
        "policy": {"model": "tiny"},
        "generation": {"max_new_tokens": 5},
        "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 4},
        "environment": {"name": "arithmetic"},
        "loss": {"reference_policy_kl_penalty": 0.1},
    }
)


def value_of(spec: RunSpec, key: str) -> object:
    value: object = spec
    for part in key.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("key", CHANGEABLE)
def test_each_key_that_may_change_is_one_of_the_spec(key: str) -> None:
    changed = with_values(SPEC, {key: 0.25})
    assert value_of(changed, key) == 0.25
    assert with_values(changed, {key: value_of(SPEC, key)}) == SPEC


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"grpo.max_num_steps": 9.0}, "grpo.max_num_steps: 9; allowed: policy.optimizer.lr"),
        ({"policy.optimizer.lr": 0.0}, "policy.optimizer.lr: 0.0; allowed: a number > 0"),
        ({"policy.optimizer.lr": float("nan")}, "policy.optimizer.lr"),
        ({"loss.ratio_clip_min": 1.5}, "loss.ratio_clip_min"),
    ],
)
def test_anything_else_is_refused_with_the_key(values: dict[str, float], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        with_values(SPEC, values)
    assert said in str(refused.value)


def test_a_penalty_needs_a_reference_that_was_loaded() -> None:
    loss = SPEC.loss.model_copy(update={"reference_policy_kl_penalty": 0.0})
    with pytest.raises(SpecError, match="no reference policy"):
        with_values(SPEC.model_copy(update={"loss": loss}), {"loss.reference_policy_kl_penalty": 0.1})
