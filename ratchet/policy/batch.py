"""From prompt groups to microbatch tensors, in the order of the plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ratchet.algorithms.advantages import group_advantages, has_signal
from ratchet.rollouts.group import PromptGroup, Sample, Tokens
from ratchet.spec.faults import DataFault
from ratchet.spec.run_spec import GrpoSpec

_PADDING, _PROMPT = -1, 0
"""Parts of a pack, beside its responses: those are 1, 2, ..."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One response with its prompt and its advantage."""

    prompt: Tokens
    sample: Sample
    advantage: float

    @property
    def num_tokens(self) -> int:
        """Tokens that are trained on."""
        return int(self.sample.mask.astype(bool).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Microbatch:
    """S rows, fed to the model as B packs of L tokens: a prompt, and after it the responses of one row or of
    several that have this prompt in common.

    Prompts are padded on the left, so that in every pack the predictions begin in the same column, that of
    the prompt's last token: the model then projects the last C columns, and only those, to the vocabulary.
    The last token of a response predicts nothing and is not fed. Padding is token 0, which does as well as
    any: it is never attended to and never trained on.
    """

    input_ids: Tensor
    """[B, L], int64."""
    attention_mask: Tensor
    """[B, L], int64, 1 for real tokens, where every pack is of one row. Else [B, 1, L, L], floating: 0 where
    a token (third dimension) sees another (fourth), -inf where not. It sees its prompt and its own response,
    up to itself."""
    position_ids: Tensor
    """[B, L], int64: 0 at a prompt's first token; every response goes on from the end of the prompt."""
    logits_to_keep: int
    """C."""
    sources: Tensor
    """[S, T], int64: which of the B * C predictions is that of this token."""
    targets: Tensor
    """[S, T], int64: the responses, padded on the right to T tokens."""
    mask: Tensor
    """[S, T], bool: the tokens that are trained on."""
    advantages: Tensor
    """[S]."""
    generation_logprobs: Tensor
    """[S, T], nats; 0 in the padding."""

    def to(self, device: torch.device) -> Self:
        tensors = {name: value for name in self.__slots__ if isinstance(value := getattr(self, name), Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


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


def fed_shape(packs: Sequence[Sequence[Row]]) -> tuple[int, int]:
    """B and L of the microbatch of these packs."""
    responses = max(sum(len(row.sample.tokens) - 1 for row in pack) for pack in packs)
    return len(packs), _longest_prompt(packs) + responses


def collate(
    packs: Sequence[Sequence[Row]],
    dtype: torch.dtype = torch.float32,
    mask_dtype: torch.dtype = torch.float32,
) -> Microbatch:
    """Tensors of one microbatch, packs and their rows in the given order.

    `dtype` is that of advantages and logprobs. The mask of packs of several rows comes in `mask_dtype`, which
    should be the precision of the forward: of any other (or a boolean one) each layer would make its own
    copy, and keep it for the backward.
    """
    rows = [row for pack in packs for row in pack]
    prompt = _longest_prompt(packs)
    batch, length = fed_shape(packs)
    logits_to_keep = length - prompt + 1

    tokens = np.zeros((batch, length), dtype=np.int64)
    positions = np.zeros_like(tokens)
    parts = np.full_like(tokens, _PADDING)
    sources: list[NDArray[np.int64]] = []
    for index, pack in enumerate(packs):
        start, end = prompt - len(pack[0].prompt), prompt
        tokens[index, start:end] = pack[0].prompt
        positions[index, start:end] = np.arange(end - start)
        parts[index, start:end] = _PROMPT
        for part, row in enumerate(pack, start=_PROMPT + 1):
            fed = row.sample.tokens[:-1]
            start, end = end, end + len(fed)
            tokens[index, start:end] = fed
            positions[index, start:end] = len(row.prompt) + np.arange(len(fed))
            parts[index, start:end] = part
            # The prompt's last token predicts the first token of every response.
            columns = np.array([prompt - 1, *range(start, end)], dtype=np.int64)
            sources.append(index * logits_to_keep + columns - (prompt - 1))

    fed_parts = torch.from_numpy(parts)
    alone = batch == len(rows)
    return Microbatch(
        input_ids=torch.from_numpy(tokens),
        attention_mask=(fed_parts != _PADDING).long() if alone else _visibility(fed_parts, mask_dtype),
        position_ids=torch.from_numpy(positions),
        logits_to_keep=logits_to_keep,
        sources=_padded(sources, np.int64),
        targets=_padded([row.sample.tokens for row in rows], np.int64),
        mask=_padded([row.sample.mask for row in rows], np.bool_),
        advantages=torch.tensor([row.advantage for row in rows], dtype=dtype),
        generation_logprobs=_padded([row.sample.logprobs for row in rows], np.float64).to(dtype),
    )


def _longest_prompt(packs: Sequence[Sequence[Row]]) -> int:
    return max(len(pack[0].prompt) for pack in packs)


def _padded(values: Sequence[NDArray[Any]], dtype: type[np.generic]) -> Tensor:
    """[S, T], zeros on the right."""
    padded = np.zeros((len(values), max(len(value) for value in values)), dtype)
    for index, value in enumerate(values):
        padded[index, : len(value)] = value
    return torch.from_numpy(padded)


def _visibility(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, L], the part of its pack that each token belongs to -> additive mask, [B, 1, L, L].

    Padding sees itself, if nothing else: a softmax over nothing would be NaN.
    """
    seen = (parts[:, None, :] == parts[:, :, None]) | (parts[:, None, :] == _PROMPT)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen.tril(), -torch.inf)[:, None]
