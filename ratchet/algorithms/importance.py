"""How much a token counts that another engine, or other weights, sampled: importance weights."""

from typing import Protocol

import torch
from torch import Tensor


class ImportanceSpec(Protocol):
    """What of LossSpec they depend on."""

    @property
    def importance_sampling_correction(self) -> bool: ...
    @property
    def importance_sampling_level(self) -> str: ...
    @property
    def importance_sampling_rule(self) -> str: ...
    @property
    def importance_weight_min(self) -> float: ...
    @property
    def importance_weight_max(self) -> float: ...


def importance_weights(
    old_logprobs: Tensor, generation_logprobs: Tensor, mask: Tensor, spec: ImportanceSpec
) -> Tensor:
    """Weights of the tokens of B responses, all tensors [B, T]; without gradient, 1 where the correction is
    off. `mask` is boolean: what it leaves out counts for nothing.

    With d = old_logprobs - generation_logprobs, the raw weight is exp(d) of the token or, at the level of the
    sequence, exp of the sum of d over the response: the ratio of its probabilities. By rule:

    * `truncate`: min(w, max), and at least min (truncated importance sampling; Yao et al. 2025, "Your
      efficient RL framework secretly brings you off-policy RL training");
    * `icepop`: 0 outside [min, max] (Ling team 2025, "Every step evolves", IcePop);
    * `sequence_mask`: 0 for a whole response whose exp(mean of d) is outside [min, max], else the raw weight.
      The geometric mean, since a sum over a long response leaves every fixed interval.
    """
    if not spec.importance_sampling_correction:
        return torch.ones_like(old_logprobs)
    distance = (old_logprobs - generation_logprobs).detach()
    low, high = spec.importance_weight_min, spec.importance_weight_max
    of_response = torch.where(mask, distance, 0.0).sum(dim=-1, keepdim=True)
    if spec.importance_sampling_rule == "sequence_mask":
        mean = (of_response / mask.sum(dim=-1, keepdim=True).clamp(min=1)).exp()
        return torch.where((mean >= low) & (mean <= high), distance.exp(), 0.0)
    by_response = spec.importance_sampling_level == "sequence"
    weights = (of_response.expand_as(distance) if by_response else distance).exp()
    if spec.importance_sampling_rule == "icepop":
        return torch.where((weights >= low) & (weights <= high), weights, 0.0)
    return weights.clamp(min=low, max=high)
