"""Which rows share a pack (ratchet.policy.batch): those of one prompt, which is then run once for them."""

from collections.abc import Sequence
from itertools import groupby

from transformers import PreTrainedModel

from ratchet.policy.batch import Row, fed_shape

ARCHITECTURES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Model types of transformers known to give a [B, 1, L, L] attention mask to every layer as it is."""

MAX_MASK_ELEMENTS = 1 << 24
"""Bound of B * L * L, 64 MB in float32: one pack of 4,096 tokens, or 16 of 1,024."""


def sharing_obstacle(model: PreTrainedModel) -> str | None:
    """Why this model cannot be fed packs of several rows; None if it can."""
    config = model.config
    if config.model_type not in ARCHITECTURES:
        return f"{config.model_type} is not known to keep samples apart"
    if config._attn_implementation != "sdpa":
        return f"{config._attn_implementation} attention may not honour the mask"
    layer_types = set(getattr(config, "layer_types", None) or ())
    if getattr(config, "sliding_window", None) is not None or layer_types - {"full_attention"}:
        return "its attention slides"
    return None


def share_prompts(rows: Sequence[Row], hidden_size: int) -> list[list[Row]]:
    """Packs of the rows that follow each other and have their prompt in common; of one row each, if that is
    cheaper to run or the mask would be larger than MAX_MASK_ELEMENTS."""
    apart = [[row] for row in rows]
    together = [list(same) for _, same in groupby(rows, key=lambda row: id(row.prompt))]
    batch, length = fed_shape(together)
    if batch * length * length > MAX_MASK_ELEMENTS:
        return apart
    return min(apart, together, key=lambda packs: _cost(packs, hidden_size))


def _cost(packs: Sequence[Sequence[Row]], hidden_size: int) -> int:
    """Multiplications of a layer of h hidden units, up to a factor: each of its 12 h² weights once per token
    fed, and 2 h for every pair of tokens, masked or not, in attention."""
    batch, length = fed_shape(packs)
    return batch * length * (6 * hidden_size + length)
