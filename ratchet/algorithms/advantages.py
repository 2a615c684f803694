"""Group-relative advantages, in float64."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPSILON = 1e-6
"""Added to the standard deviation, so that a nearly constant group does not blow up."""


def group_advantages(
    rewards: Array,
    baseline: Literal["group_mean", "leave_one_out"] = "group_mean",
    normalize: bool = True,
) -> Array:
    """Advantages of the N samples of one prompt group, [N] -> [N].

    The baseline is the mean reward of the group (GRPO, Shao et al. 2024, arXiv:2402.03300, §4.1.2) or, for
    each sample, the mean of the *other* N - 1 (RLOO, Ahmadian et al. 2024, arXiv:2402.14740, eq. 8).
    `normalize` divides by the group's sample standard deviation (N - 1 in its denominator) + EPSILON.

    A constant group gets exact zeros, which `has_signal` relies on: a mean of equal floats need not equal
    them (0.1 * 3 / 3 does not). Raises ValueError for fewer than two samples or a reward that is not finite.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 1 or rewards.size < 2:
        raise ValueError(f"a group needs at least 2 rewards, got an array of shape {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    if (rewards == rewards[0]).all():
        return np.zeros_like(rewards)

    if baseline == "leave_one_out":
        advantages = rewards - (rewards.sum() - rewards) / (rewards.size - 1)
    else:
        advantages = rewards - rewards.mean()
    if normalize:
        advantages /= rewards.std(ddof=1) + EPSILON
    return advantages


def has_signal(advantages: Array) -> bool:
    """Whether a policy gradient can come of these advantages: at least one is not exactly zero."""
    return bool((advantages != 0.0).any())
