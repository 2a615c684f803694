"""AdamW over named parameters: its state goes by parameter name, never by index."""

import torch
from torch import Tensor, nn

from ratchet.spec.run_spec import OptimizerSpec

_NORM_CHUNK = 1 << 16
"""A float32 norm over tens of millions of elements loses 1e-3 on a CPU; over this many it loses 1e-7."""


class NamedAdamW:
    """AdamW (Loshchilov & Hutter 2019) with linear warm-up and global-norm clipping, over summed gradients.

    Decay applies to every parameter. The fused kernel passes over memory once; the moments exist from the
    start, so that a state always has the same names and shapes.
    """

    def __init__(self, model: nn.Module, spec: OptimizerSpec) -> None:
        self.spec = spec
        """Read at every update: its values may change between two."""
        self._parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self._adamw = torch.optim.AdamW(
            self._parameters.values(),
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=True,
        )
        for parameter in self._parameters.values():
            self._adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def to(self, device: torch.device) -> None:
        """Move the moments to where the parameters are moved to, and drop the gradients. Between steps."""
        for parameter in self._parameters.values():
            parameter.grad = None
            moments = self._adamw.state[parameter]
            for name, moment in moments.items():
                moments[name] = moment.to(device)

    def zero_grad(self) -> None:
        """Set every gradient to zero. They stay allocated, also for parameters that no microbatch reaches:
        AdamW then treats a step without any signal like every other."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def summed_grad_norm(self) -> float:
        """Global L2 norm of the gradients as they are, accumulated in float64."""
        norms = [
            norm.double()
            for parameter in self._parameters.values()
            for norm in torch._foreach_norm(_grad(parameter).view(-1).split(_NORM_CHUNK))
        ]
        return float(torch.linalg.vector_norm(torch.stack(norms)))

    def learning_rate(self, step: int) -> float:
        """Of step `step`, counted from 1."""
        return self.spec.lr * min(1.0, step / max(1, self.spec.warmup_steps))

    def update(self, step: int, count: int, grad_norm: float) -> None:
        """Scale the summed gradients to the mean over `count` tokens, clip, and update the weights.

        `grad_norm` is the norm of that mean. Both scalings are one pass over memory.
        """
        clip = min(1.0, self.spec.max_grad_norm / grad_norm) if grad_norm > 0.0 else 1.0
        torch._foreach_mul_([_grad(parameter) for parameter in self._parameters.values()], clip / count)
        for group in self._adamw.param_groups:
            group["lr"], group["weight_decay"] = self.learning_rate(step), self.spec.weight_decay
        self._adamw.step()

    def named_state(self) -> dict[str, dict[str, Tensor]]:
        """Parameter name -> its live `step`, `exp_avg` and `exp_avg_sq`."""
        return {name: dict(self._adamw.state[p]) for name, p in self._parameters.items()}


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "zero_grad comes first"
    return parameter.grad
