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


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability in nats of `targets` under softmax(logits / temperature), and that softmax's entropy.

    [..., V] and [...] -> two tensors [...], float32 or the logits' precision if that is higher. Only the
    log-probabilities are differentiable. top_p and top_k are left out on purpose: a truncated distribution
    has no gradient towards what it cut off, so training works on the whole one.
    """
    rows, chosen = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    logprobs, entropy = cast(tuple[Tensor, Tensor], _TokenLogprobs.apply(rows, chosen, temperature))
    return logprobs.view(targets.shape), entropy.view(targets.shape)


def _chunks(rows: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // rows.shape[-1])
    return [slice(start, start + size) for start in range(0, rows.shape[0], size)]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_z = torch.empty(targets.shape, dtype=dtype, device=logits.device)
        logprobs, entropy = torch.empty_like(log_z), torch.empty_like(log_z)
        for part in _chunks(logits):
            scores = logits[part].to(dtype) / temperature
            peak = scores.amax(dim=-1)
            weights = (scores - peak[:, None]).exp_()
            total = weights.sum(dim=-1)
            log_z[part] = peak + total.log()
            logprobs[part] = scores.gather(-1, targets[part, None]).squeeze(-1) - log_z[part]
            entropy[part] = log_z[part] - weights.mul_(scores).sum(dim=-1) / total
        ctx.save_for_backward(logits, targets, log_z)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        """d logprob[t] / d logits = (onehot(t) - softmax(logits / temperature)) / temperature."""
        logits, targets, log_z = cast(Any, ctx).saved_tensors
        temperature: float = cast(Any, ctx).temperature
        upstream = grads[0] / temperature
        out = torch.empty_like(logits)
        for part in _chunks(logits):
            grad = (logits[part].to(log_z.dtype) / temperature).sub_(log_z[part, None]).exp_()
            grad.mul_(-upstream[part, None])
            grad.scatter_add_(-1, targets[part, None], upstream[part, None])
            out[part] = grad
        return out, None, None
