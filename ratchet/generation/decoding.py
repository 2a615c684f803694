"""Forward passes of a batch that grows by one token a step: prefill once a distinct prompt, then decode."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ratchet.rollouts.group import Tokens


class Decoder:
    """A batch of rows and their key-value cache. Rows are left-padded, so that they all end together.

    The samples of a prompt group share its prompt: each distinct prompt is computed once and its cache
    entries are copied to its rows. Use it under `torch.inference_mode()`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._mask: Tensor | None = None
        self._positions = torch.empty(0)

    def prefill(self, prompts: Sequence[Tokens]) -> Tensor:
        """Read the prompts; returns the logits after the last token of each, [B, V]."""
        distinct: dict[tuple[int, ...], int] = {}
        owners = [distinct.setdefault(tuple(prompt.tolist()), len(distinct)) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in distinct])
        width = int(lengths.max())
        tokens = torch.tensor([[0] * (width - len(prompt)) + [*prompt] for prompt in distinct])
        positions = torch.arange(width) - (width - lengths).unsqueeze(-1)
        if int(lengths.min()) < width:  # without padding no mask is needed, which is the faster path
            self._mask = self._on_device((positions >= 0).long())
        self._positions = self._on_device(positions.clamp(min=0))
        logits = self._forward(self._on_device(tokens))
        if len(distinct) == len(prompts):
            return logits
        rows = self._on_device(torch.tensor(owners))
        self.keep(rows)
        return logits[rows]

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, int64 [B'], in this order; a row may be asked for more than once."""
        self._cache.batch_select_indices(rows)
        self._positions = self._positions[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token a row, [B]; returns the logits after it, [B, V]."""
        self._positions = self._positions[:, -1:] + 1
        if self._mask is not None:
            self._mask = torch.cat([self._mask, torch.ones_like(self._positions)], dim=-1)
        return self._forward(tokens.unsqueeze(-1))

    def _forward(self, tokens: Tensor) -> Tensor:
        output: Any = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._model.device)
