"""Values of the run spec that may change while a run goes on."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ratchet.spec.problems import InvalidSpec, SpecProblem, explain
from ratchet.spec.run_spec import RunSpec

CHANGEABLE = (
    "policy.optimizer.lr",
    "policy.optimizer.weight_decay",
    "policy.optimizer.max_grad_norm",
    "loss.ratio_clip_min",
    "loss.ratio_clip_max",
    "loss.reference_policy_kl_penalty",
    "loss.importance_weight_min",
    "loss.importance_weight_max",
)


def with_values(spec: RunSpec, values: Mapping[str, float]) -> RunSpec:
    """The spec with other values of some keys.

    Raises InvalidSpec for a key that cannot change during a run, and for a value that it does not take.
    """
    data = spec.model_dump()
    for key, value in values.items():
        if key not in CHANGEABLE:
            raise _refused(key, value, ", ".join(CHANGEABLE), "these can change during a run")
        *path, name = key.split(".")
        section: dict[str, Any] = data
        for part in path:
            section = section[part]
        section[name] = value
    try:
        changed = RunSpec.model_validate(data)
    except ValidationError as error:
        raise InvalidSpec(explain(error)) from None
    if (weight := changed.loss.reference_policy_kl_penalty) and not spec.loss.reference_policy_kl_penalty:
        hint = "the run was launched with 0 and has loaded no reference policy: fork it"
        raise _refused("loss.reference_policy_kl_penalty", weight, "0", hint)
    return changed


def _refused(key: str, value: float, allowed: str, hint: str) -> InvalidSpec:
    return InvalidSpec([SpecProblem(key=key, found=f"{value:g}", allowed=allowed, hint=hint)])
