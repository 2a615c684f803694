import math

import numpy as np
import pytest

from ratchet.algorithms.advantages import EPSILON, group_advantages, has_signal


def by_hand(rewards, baseline, normalize):
    n = len(rewards)
    mean = sum(rewards) / n
    out = []
    for i, reward in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if j != i]
        out.append(reward - (mean if baseline == "group_mean" else sum(others) / len(others)))
    if normalize:
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (n - 1))
        out = [a / (deviation + EPSILON) for a in out]
    return out


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("size", [2, 3, 8, 33])
def test_agrees_with_plain_python(baseline, normalize, size):
    rewards = np.random.default_rng(size).normal(size=size) * 3
    got = group_advantages(rewards, baseline, normalize)
    np.testing.assert_allclose(got, by_hand(rewards.tolist(), baseline, normalize), rtol=1e-12, atol=1e-14)
    assert has_signal(got)


def test_known_values():
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(group_advantages(rewards, normalize=False), [0.75, -0.25, -0.25, -0.25])
    np.testing.assert_allclose(
        group_advantages(rewards, "leave_one_out", normalize=False), [1.0, -1 / 3, -1 / 3, -1 / 3]
    )
    # The standard deviation of (1, 0, 0, 0) is 1/2 with N - 1 = 3 in the denominator.
    np.testing.assert_allclose(group_advantages(rewards), [1.5, -0.5, -0.5, -0.5], rtol=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -0.3, 1e-12])
def test_a_constant_group_is_exactly_zero(baseline, normalize, reward):
    # 0.1 three times: the mean is 0.10000000000000002, and dividing by 0 + EPSILON would amplify that.
    advantages = group_advantages(np.full(3, reward), baseline, normalize)
    assert advantages.tolist() == [0.0, 0.0, 0.0]
    assert not has_signal(advantages)


def test_the_smallest_difference_is_a_signal():
    assert has_signal(group_advantages(np.array([1.0, np.nextafter(1.0, 2.0)]), normalize=False))


@pytest.mark.parametrize("rewards", [[1.0], [], [[1.0, 2.0]]])
def test_a_group_of_less_than_two_is_refused(rewards):
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(np.array(rewards))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_must_be_finite(bad):
    with pytest.raises(ValueError, match="finite"):
        group_advantages(np.array([1.0, bad]))
