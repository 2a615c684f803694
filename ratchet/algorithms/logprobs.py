"""Log-probabilities of chosen tokens, without a float32 copy of the logits.

Logits are by far the largest tensor of a step (a vocabulary of 49,152 against a hidden size of 576). They
stay in the precision that the model gave them; softmax runs in float32 (or the logits' own precision, if that
is higher) over a few rows at a time, forward and backward.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

CHUNK_ELEMENTS = 1 << 21
"""Logits that are upcast at a time: 8 MB in float32."""


def token_logprobs(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, sources: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probability in nats of `targets` under softmax(logits / temperature), and that softmax's entropy.

    [..., V] and [...] -> two tensors of the shape of `targets`, float32 or the logits' precision if that is
    higher. Only the log-probabilities are differentiable. `sources`, of the shape of `targets`, says which of
    the R distributions that `logits` hold predicts each target, several targets the same one if need be; by
    default they go one by one. top_p and top_k are left out on purpose: a truncated distribution has no
    gradient towards what it cut off, so training works on the whole one.
    """
    rows, chosen = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    where = torch.arange(len(rows), device=rows.device) if sources is None else sources.reshape(-1)
    logprobs, entropy = cast(tuple[Tensor, Tensor], _TokenLogprobs.apply(rows, chosen, where, temperature))
    return logprobs.view(targets.shape), entropy.view(targets.shape)


def _chunks(rows: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // rows.shape[-1])
    return [slice(start, start + size) for start in range(0, rows.shape[0], size)]


class _TokenLogprobs(torch.autograd.Function):
    """[R, V], [N], [N] -> [N], [N]."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, sources: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_z = torch.empty(logits.shape[0], dtype=dtype, device=logits.device)
        entropy = torch.empty_like(log_z)
        for part in _chunks(logits):
            scores = logits[part].to(dtype) / temperature
            peak = scores.amax(dim=-1)
            weights = (scores - peak[:, None]).exp_()
            total = weights.sum(dim=-1)
            log_z[part] = peak + total.log()
            entropy[part] = log_z[part] - weights.mul_(scores).sum(dim=-1) / total
        logprobs = logits[sources, targets].to(dtype) / temperature - log_z[sources]
        entropies = entropy[sources]
        ctx.save_for_backward(logits, targets, sources, log_z, logprobs)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """d logprob[t] / d logits = (onehot(t) - softmax(logits / temperature)) / temperature."""
        logits, targets, sources, log_z, logprobs = cast(Any, ctx).saved_tensors
        temperature: float = cast(Any, ctx).temperature
        upstream = grads[0] / temperature
        pull = torch.zeros_like(log_z).index_put_((sources,), upstream, accumulate=True)
        out = torch.empty_like(logits)
        for part in _chunks(logits):
            weights = (logits[part].to(log_z.dtype) / temperature).sub_(log_z[part, None]).exp_()
            out[part] = weights.mul_(-pull[part, None])
        # The targets' own entries, summed before they are rounded: responses may begin with the same token.
        entries, twins = torch.unique(sources * logits.shape[-1] + targets, return_inverse=True)
        push = torch.zeros_like(entries, dtype=pull.dtype).index_put_((twins,), upstream, accumulate=True)
        out[sources, targets] = (push[twins] - pull[sources] * logprobs.exp()).to(out.dtype)
        return out, None, None, None
