"""The clipped policy gradient at token level, as sums.

Sums and not means: the one denominator, the number of trained tokens of the whole batch, is applied once,
after all microbatches, so that nothing depends on how the batch was cut (law 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.algorithms.importance import importance_weights
from ratchet.spec.run_spec import LossSpec


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the trained tokens of a microbatch, float64 scalars."""

    loss: Tensor
    """Differentiable."""
    metrics: dict[str, Tensor]
    """Detached; divided by a token count each is a mean."""


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    generation_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    spec: LossSpec,
    reference_logprobs: Tensor | None = None,
) -> LossSums:
    """Summed loss of B responses, padded to T tokens. Every tensor is [B, T], but `advantages` is [B].

    Per token, with r = exp(logprobs - old_logprobs) and A the sample's advantage:

        -w * min(r * A, clip(r, 1 - ratio_clip_min, 1 + ratio_clip_max) * A) + penalty * kl

    * the asymmetric clip is DAPO's clip-higher (Yu et al. 2025, arXiv:2503.14476, eq. 10);
    * w corrects for sampling in another engine or from other weights, without gradient: see
      `importance_weights`;
    * kl is the k3 estimate of the divergence from the reference; it is not importance weighted.

    With one update per batch, `old_logprobs` are `logprobs`, detached: r is 1 and its gradient is that of
    logprobs. `mask` is boolean; what it leaves out counts for nothing. `reference_logprobs` are required if
    reference_policy_kl_penalty > 0.
    """
    old_logprobs = old_logprobs.detach()
    ratio = (logprobs - old_logprobs).exp()
    gain = ratio * advantages[:, None]
    clipped_gain = ratio.clamp(1.0 - spec.ratio_clip_min, 1.0 + spec.ratio_clip_max) * advantages[:, None]

    weight = importance_weights(old_logprobs, generation_logprobs, mask, spec)
    loss = -weight * torch.minimum(gain, clipped_gain)
    metrics = {
        "ratio_mean": ratio,
        "clip_fraction": clipped_gain < gain,
        "importance_weight_mean": weight,
        "importance_dropped": weight == 0.0,
        "logprob_error": (generation_logprobs - old_logprobs).abs(),
    }
    if reference_logprobs is not None:
        kl = k3(logprobs, reference_logprobs)
        loss = loss + spec.reference_policy_kl_penalty * kl
        metrics["kl"] = kl
    elif spec.reference_policy_kl_penalty > 0.0:
        raise ValueError("reference_policy_kl_penalty is positive, but there are no reference_logprobs")
    sums = {name: masked_sum(values.detach(), mask) for name, values in metrics.items()}
    return LossSums(masked_sum(loss, mask), sums)


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference), in nats: exp(q) - q - 1 with q = reference - policy
    log-probability, never negative (Schulman 2020, "Approximating KL divergence")."""
    q = reference_logprobs - logprobs
    return torch.expm1(q) - q


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of `values` where the boolean `mask` is set, as a float64 scalar."""
    return torch.where(mask, values, 0.0).sum(dtype=torch.float64)
