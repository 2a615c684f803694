"""From prompt groups to microbatch tensors, in the order of the plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ratchet.algorithms.advantages import group_advantages, has_signal
from ratchet.rollouts.group import PromptGroup, Sample, Tokens
from ratchet.spec.faults import DataFault
from ratchet.spec.run_spec import GrpoSpec

_PAD = 0
"""Any id of the vocabulary does: padding is never attended to and never trained on."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One response with its prompt and its advantage: a row of a microbatch."""

    prompt: Tokens
    sample: Sample
    advantage: float

    @property
    def num_tokens(self) -> int:
        """Tokens that are trained on."""
        return int(self.sample.mask.astype(bool).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Microbatch:
    """B rows. Prompts are padded on the left to P tokens and responses on the right to T, so that every
    response begins in the same column: the model then projects the last T positions, and only those, to the
    vocabulary. The very last token predicts nothing and is not fed: L = P + T - 1."""

    input_ids: Tensor
    """[B, L], int64."""
    attention_mask: Tensor
    """[B, L], int64: 1 for real tokens."""
    position_ids: Tensor
    """[B, L], int64: 0 at a row's first real token."""
    targets: Tensor
    """[B, T], int64: the response."""
    mask: Tensor
    """[B, T], bool: the tokens that are trained on."""
    advantages: Tensor
    """[B]."""
    generation_logprobs: Tensor
    """[B, T], nats; 0 in the padding."""

    def to(self, device: torch.device) -> Self:
        return type(self)(*(getattr(self, name).to(device) for name in self.__slots__))


def group_rows(group: PromptGroup, grpo: GrpoSpec, max_length: int) -> tuple[list[Row], bool]:
    """The rows of a group, and whether its advantages carry a signal.

    Raises DataFault if a sample is empty, malformed, not finite, or longer than `max_length` with its prompt.
    """
    for index, sample in enumerate(group.samples):
        _check(group, index, sample, max_length)
    rewards = np.array([sample.reward for sample in group.samples])
    try:
        advantages = group_advantages(rewards, grpo.advantage_baseline, grpo.normalize_advantages)
    except ValueError as error:
        raise DataFault(f"prompt group {group.key} ({group.problem_id}): {error}") from error
    rows = [
        Row(group.prompt, sample, float(advantage))
        for sample, advantage in zip(group.samples, advantages, strict=True)
    ]
    return rows, has_signal(advantages)


def _check(group: PromptGroup, index: int, sample: Sample, max_length: int) -> None:
    where = f"prompt group {group.key} ({group.problem_id}), sample {index}"
    prompt, response = len(group.prompt), len(sample.tokens)
    if not prompt or not response:
        raise DataFault(f"{where}: prompt and response need a token each, got {prompt} and {response}")
    if not response == len(sample.logprobs) == len(sample.mask):
        raise DataFault(
            f"{where}: {response} tokens, {len(sample.logprobs)} logprobs and {len(sample.mask)} mask entries"
        )
    if prompt + response > max_length:
        raise DataFault(
            f"{where}: prompt and response are {prompt} + {response} tokens, more than "
            f"policy.max_total_sequence_length ({max_length}): raise it, or lower generation.max_new_tokens"
        )
    if not np.isfinite(sample.logprobs).all():
        raise DataFault(f"{where}: generation logprobs are not finite")


def collate(rows: Sequence[Row], dtype: torch.dtype = torch.float32) -> Microbatch:
    """Tensors of one microbatch, rows in the given order; `dtype` is that of advantages and logprobs."""
    batch = len(rows)
    prompt = max(len(row.prompt) for row in rows)
    response = max(len(row.sample.tokens) for row in rows)

    tokens = np.full((batch, prompt + response), _PAD, dtype=np.int64)
    real = np.zeros((batch, prompt + response), dtype=np.int64)
    mask = np.zeros((batch, response), dtype=bool)
    logprobs = np.zeros((batch, response), dtype=np.float64)
    for index, row in enumerate(rows):
        start, length = prompt - len(row.prompt), len(row.sample.tokens)
        tokens[index, start:prompt] = row.prompt
        tokens[index, prompt : prompt + length] = row.sample.tokens
        real[index, start : prompt + length] = 1
        mask[index, :length] = row.sample.mask
        logprobs[index, :length] = row.sample.logprobs

    fed = torch.from_numpy(real[:, :-1])
    return Microbatch(
        input_ids=torch.from_numpy(tokens[:, :-1]),
        attention_mask=fed,
        position_ids=(fed.cumsum(dim=1) - 1).clamp(min=0),
        targets=torch.from_numpy(tokens[:, prompt:]),
        mask=torch.from_numpy(mask),
        advantages=torch.tensor([row.advantage for row in rows], dtype=dtype),
        generation_logprobs=torch.from_numpy(logprobs).to(dtype),
    )
