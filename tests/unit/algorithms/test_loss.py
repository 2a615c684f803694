"""The loss against an oracle in plain Python, token by token, and its gradient against finite differences."""

import math

import pytest
import torch

from ratchet.algorithms.loss import k3, policy_loss
from ratchet.spec.run_spec import LossSpec

B, T = 3, 4
SPECS = {
    "default": LossSpec(),
    "clip-higher": LossSpec(ratio_clip_min=0.1, ratio_clip_max=0.28),
    "kl": LossSpec(reference_policy_kl_penalty=0.3),
    "no-correction": LossSpec(importance_sampling_correction=False),
    "tight-truncation": LossSpec(importance_weight_max=0.9),
    "truncated-below": LossSpec(importance_weight_min=0.8, importance_weight_max=1.3),
    "sequences": LossSpec(importance_sampling_level="sequence", importance_weight_max=1.5),
    "icepop": LossSpec(
        importance_sampling_rule="icepop", importance_weight_min=0.6, importance_weight_max=1.8
    ),
    "icepop-sequences": LossSpec(
        importance_sampling_level="sequence",
        importance_sampling_rule="icepop",
        importance_weight_min=0.5,
        importance_weight_max=3.0,
    ),
    "sequence-mask": LossSpec(
        importance_sampling_rule="sequence_mask", importance_weight_min=0.9, importance_weight_max=1.2
    ),
    "everything": LossSpec(
        ratio_clip_min=0.05, ratio_clip_max=0.4, reference_policy_kl_penalty=1.0, importance_weight_max=1.1
    ),
}


def draw(seed, batch=B):
    """Log-probabilities whose ratios fall on both sides of every clip."""
    generator = torch.Generator().manual_seed(seed)

    def near(center, spread):
        noise = torch.randn(batch, T, dtype=torch.float64, generator=generator) * spread
        return (center + noise).clamp(max=-1e-3)

    old = near(torch.tensor(-2.0), 0.7)
    return {
        "logprobs": near(old, 0.4),
        "old_logprobs": old,
        "generation_logprobs": near(old, 0.5),
        "advantages": torch.randn(batch, dtype=torch.float64, generator=generator),
        "mask": torch.rand(batch, T, generator=generator) < 0.7,
        "reference_logprobs": near(old, 0.6),
    }


def weight_by_hand(x, i, j, spec):
    """Of one token, as a product over its response or by itself."""
    if not spec.importance_sampling_correction:
        return 1.0
    low, high = spec.importance_weight_min, spec.importance_weight_max
    ratios = [
        math.exp(x["old_logprobs"][i, t].item()) / math.exp(x["generation_logprobs"][i, t].item())
        for t in range(T)
        if x["mask"][i, t]
    ]
    own = math.exp(x["old_logprobs"][i, j].item()) / math.exp(x["generation_logprobs"][i, j].item())
    if spec.importance_sampling_rule == "sequence_mask":
        return own if low <= math.prod(ratios) ** (1 / len(ratios)) <= high else 0.0
    weight = math.prod(ratios) if spec.importance_sampling_level == "sequence" else own
    if spec.importance_sampling_rule == "icepop":
        return weight if low <= weight <= high else 0.0
    return max(low, min(high, weight))


def by_hand(x, spec):
    """Sums over the masked tokens, from the definitions."""
    names = ["loss", "ratio_mean", "clip_fraction", "importance_weight_mean", "importance_dropped"]
    names += ["logprob_error", "kl"]
    sums = dict.fromkeys(names, 0.0)
    for i in range(x["mask"].shape[0]):
        advantage = x["advantages"][i].item()
        for j in range(T):
            if not x["mask"][i, j]:
                continue
            lp, old, gen, ref = (
                x[name][i, j].item()
                for name in ("logprobs", "old_logprobs", "generation_logprobs", "reference_logprobs")
            )
            ratio = math.exp(lp) / math.exp(old)
            clipped = max(1 - spec.ratio_clip_min, min(1 + spec.ratio_clip_max, ratio))
            weight = weight_by_hand(x, i, j, spec)
            kl = math.exp(ref) / math.exp(lp) - (ref - lp) - 1
            sums["loss"] += -weight * min(ratio * advantage, clipped * advantage)
            sums["loss"] += spec.reference_policy_kl_penalty * kl
            sums["ratio_mean"] += ratio
            sums["clip_fraction"] += clipped * advantage < ratio * advantage
            sums["importance_weight_mean"] += weight
            sums["importance_dropped"] += weight == 0
            sums["logprob_error"] += abs(gen - old)
            sums["kl"] += kl
    return sums


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(5))
def test_loss_and_metrics_agree_with_plain_python(name, seed):
    x, spec = draw(seed), SPECS[name]
    got = policy_loss(spec=spec, **x)
    want = by_hand(x, spec)
    assert got.loss.item() == pytest.approx(want.pop("loss"), abs=1e-12)
    assert {k: v.item() for k, v in got.metrics.items()} == pytest.approx(want, abs=1e-12)


def test_the_oracle_meets_every_branch():
    spec, clipped, truncated, tokens = SPECS["everything"], 0.0, 0, 0
    for seed in range(5):
        x = draw(seed)
        clipped += by_hand(x, spec)["clip_fraction"]
        weights = (x["old_logprobs"] - x["generation_logprobs"]).exp()[x["mask"]]
        truncated += int((weights > spec.importance_weight_max).sum())
        tokens += int(x["mask"].sum())
    assert 0 < clipped < tokens
    assert 0 < truncated < tokens


@pytest.mark.parametrize("name", ["icepop", "icepop-sequences", "sequence-mask"])
def test_some_tokens_are_dropped_and_some_are_not(name):
    dropped = sum(by_hand(draw(seed), SPECS[name])["importance_dropped"] for seed in range(5))
    assert 0 < dropped < sum(int(draw(seed)["mask"].sum()) for seed in range(5))


def test_what_overflows_is_bounded_or_dropped_and_never_nan():
    x = draw(0)
    x["generation_logprobs"] = x["old_logprobs"] - 800.0  # exp of it is infinite
    for spec in SPECS.values():
        got = policy_loss(spec=spec, **x)
        if spec.importance_sampling_correction:
            assert got.metrics["importance_weight_mean"].isfinite()
        assert got.loss.isfinite()


@pytest.mark.parametrize("name", SPECS)
def test_gradient_agrees_with_finite_differences_of_the_oracle(name):
    x, spec, h = draw(7), SPECS[name], 1e-6
    x["logprobs"].requires_grad_()
    policy_loss(spec=spec, **x).loss.backward()
    for i in range(B):
        for j in range(T):
            sides = []
            for sign in (1, -1):
                moved = x["logprobs"].detach().clone()
                moved[i, j] += sign * h
                sides.append(by_hand({**x, "logprobs": moved}, spec)["loss"])
            assert x["logprobs"].grad[i, j].item() == pytest.approx((sides[0] - sides[1]) / (2 * h), abs=1e-7)


def test_on_policy_the_gradient_is_minus_advantage():
    """One update per batch: the old log-probabilities are the current ones, so REINFORCE comes out."""
    x = draw(3)
    x["logprobs"].requires_grad_()
    x["old_logprobs"] = x["logprobs"]
    got = policy_loss(spec=LossSpec(importance_sampling_correction=False), **x)
    got.loss.backward()
    expected = torch.where(x["mask"], -x["advantages"][:, None], 0.0)
    torch.testing.assert_close(x["logprobs"].grad, expected.expand(B, T), rtol=0, atol=1e-15)
    assert got.metrics["clip_fraction"].item() == 0
    assert got.metrics["ratio_mean"].item() == x["mask"].sum()


def test_importance_weights_are_truncated_and_carry_no_gradient():
    x = draw(4)
    x["old_logprobs"] = x["old_logprobs"].requires_grad_()
    x["generation_logprobs"] = x["generation_logprobs"] - 50.0
    spec = LossSpec(importance_weight_max=3.0)
    got = policy_loss(spec=spec, **{**x, "logprobs": x["logprobs"].requires_grad_()})
    got.loss.backward()
    assert got.metrics["importance_weight_mean"].item() == 3.0 * x["mask"].sum()
    assert x["old_logprobs"].grad is None


def test_what_the_mask_leaves_out_counts_for_nothing():
    x = draw(5)
    changed = {name: value.clone() for name, value in x.items()}
    for name in ("logprobs", "old_logprobs", "generation_logprobs", "reference_logprobs"):
        changed[name][~x["mask"]] = -9.0
    spec = SPECS["everything"]
    a, b = policy_loss(spec=spec, **x), policy_loss(spec=spec, **changed)
    assert a.loss.item() == b.loss.item()
    assert {k: v.item() for k, v in a.metrics.items()} == {k: v.item() for k, v in b.metrics.items()}


def test_law_1_sums_do_not_depend_on_the_cut():
    spec, x = SPECS["everything"], draw(6, batch=12)
    whole = policy_loss(spec=spec, **x)
    for size in (1, 5):
        cuts = [
            policy_loss(spec=spec, **{name: value[i : i + size] for name, value in x.items()})
            for i in range(0, 12, size)
        ]
        assert sum(cut.loss.item() for cut in cuts) == pytest.approx(whole.loss.item(), rel=1e-12)
        for name, value in whole.metrics.items():
            assert sum(cut.metrics[name].item() for cut in cuts) == pytest.approx(value.item(), rel=1e-12)


def test_k3_is_never_negative_and_zero_only_without_a_difference():
    generator = torch.Generator().manual_seed(8)
    a = -torch.rand(10_000, generator=generator) * 10
    b = -torch.rand(10_000, generator=generator) * 10
    tiny = a + torch.randn(10_000, generator=generator) * 1e-5
    assert (k3(a, b) >= 0).all()
    assert (k3(a, tiny) >= 0).all()
    assert (k3(a, a) == 0).all()


def test_k3_estimates_the_divergence_without_bias():
    """E_{x ~ p}[k3] = KL(p || q), exactly, by summing over a small vocabulary."""
    generator = torch.Generator().manual_seed(9)
    p = torch.randn(7, dtype=torch.float64, generator=generator).log_softmax(0)
    q = torch.randn(7, dtype=torch.float64, generator=generator).log_softmax(0)
    divergence = sum(math.exp(a) * (a - b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    assert (p.exp() * k3(p, q)).sum().item() == pytest.approx(divergence, abs=1e-12)


def test_a_penalty_without_a_reference_is_refused():
    x = draw(1)
    del x["reference_logprobs"]
    with pytest.raises(ValueError, match="reference"):
        policy_loss(spec=SPECS["kl"], **x)
