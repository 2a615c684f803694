"""From logits to tokens: temperature, top-k and top-p, and one random stream per row."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ratchet.generation.protocol import SamplingParams


def draw_uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """Uniform numbers in [0, 1), float64 [B, length]: row i comes from `seeds[i]` alone (Philox).

    A row's stream is drawn whole before decoding starts, so that nothing about its neighbours, their order
    or their number can shift it; a shorter draw is a prefix of a longer one.
    """
    rows = [np.random.Generator(np.random.Philox(seed)).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def sample(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """One token a row, and its log-probability under the distribution it was drawn from.

    `logits` [B, V] of any float dtype, `uniforms` float64 [B] in [0, 1); returns int64 [B] and float32 [B].
    Temperature comes first, then top-k, then top-p over what top-k kept; the rest is renormalised. Greedy
    (temperature 0) reports log-probabilities at temperature 1, where the policy's own distribution lives.
    """
    logits = logits.float()
    if params.temperature == 0.0:
        tokens = logits.argmax(dim=-1)
        return tokens, _at(torch.log_softmax(logits, dim=-1), tokens)
    logits = logits / params.temperature
    if params.top_k == 0 and params.top_p == 1.0:
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = _invert(logprobs, uniforms)
        return tokens, _at(logprobs, tokens)
    logprobs, candidates = _nucleus(logits, params)
    ranks = _invert(logprobs, uniforms)
    return _at(candidates, ranks), _at(logprobs, ranks)


def _nucleus(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Log-probabilities [B, K] after top-k and top-p, likeliest first, and the tokens they belong to.

    Top-p keeps the smallest set of likeliest tokens whose mass reaches p (Holtzman et al. 2020).
    """
    vocabulary = logits.shape[-1]
    ordered, candidates = torch.topk(logits, min(params.top_k or vocabulary, vocabulary), dim=-1)
    if params.top_p < 1.0:
        mass = torch.softmax(ordered.double(), dim=-1)
        mass_before = mass.cumsum(dim=-1) - mass
        mass_before[:, 0] = 0.0  # the likeliest token stays, whatever the rounding
        ordered = ordered.masked_fill(mass_before >= params.top_p, -torch.inf)
    return torch.log_softmax(ordered, dim=-1), candidates


def _invert(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse transform sampling: the first index whose cumulative probability exceeds u, [B].

    Never an index of probability zero: those do not raise the cumulative sum.
    """
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1]
    # The float32 probabilities do not sum to exactly 1; u x total may round up to the total itself.
    targets = torch.minimum(
        uniforms.to(total.device) * total, torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cumulative, targets.unsqueeze(-1), right=True).squeeze(-1)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)
