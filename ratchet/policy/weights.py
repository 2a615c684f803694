"""Names of a model's weights: the convention of refits, digests and checkpoints."""

from torch import Tensor, nn


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Name -> live tensor (detached, sharing storage): the parameters and the persistent buffers.

    A tied tensor appears once, under the first of its names (`model.embed_tokens.weight`, not
    `lm_head.weight`). Two models of the same config name the same tensors, so what one side stages the other
    can copy in by name.
    """
    named: dict[str, Tensor] = dict(model.named_parameters())
    saved = model.state_dict()
    named |= {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: tensor.detach() for name, tensor in named.items()}
