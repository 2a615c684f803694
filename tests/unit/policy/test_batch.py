import dataclasses
import math
from itertools import islice

import numpy as np
import pytest
import torch

from ratchet.algorithms.advantages import group_advantages
from ratchet.policy.batch import collate, fed_shape, group_rows
from ratchet.spec.faults import DataFault
from ratchet.spec.run_spec import GrpoSpec

GRPO = GrpoSpec(num_prompts_per_step=6, num_generations_per_prompt=4, max_num_steps=1)


@pytest.fixture
def rows(make_groups):
    return [row for group in make_groups() for row in group_rows(group, GRPO, 64)[0]]


def cut(rows, *lengths):
    """Packs of so many rows."""
    rest = iter(rows)
    return [list(islice(rest, length)) for length in lengths]


@pytest.mark.parametrize(
    "lengths", [[1] * 24, [4] * 6, [1, 3, 4, 2, 2, 1, 1, 1, 1, 4, 3]], ids=["single", "groups", "ragged"]
)
def test_every_token_is_predicted_from_its_prompt_and_the_response_before_it(rows, lengths):
    packs = cut(rows, *lengths)
    samples = [row for pack in packs for row in pack]
    batch = collate(packs, torch.float64, torch.float64)
    length, kept = batch.input_ids.shape[1], batch.logits_to_keep
    assert batch.input_ids.shape == fed_shape(packs)
    columns = torch.arange(length)
    for i, row in enumerate(samples):
        for j, token in enumerate(row.sample.tokens.tolist()):
            index, column = divmod(batch.sources[i, j].item(), kept)
            column += length - kept
            if batch.attention_mask.ndim == 2:
                seen = (batch.attention_mask[index] == 1) & (columns <= column)
            else:
                seen = batch.attention_mask[index, 0, column] == 0.0
            context = [*row.prompt.tolist(), *row.sample.tokens[:j].tolist()]
            assert batch.input_ids[index, seen].tolist() == context
            assert batch.position_ids[index, seen].tolist() == list(range(len(context)))
            assert batch.targets[i, j] == token
            assert batch.mask[i, j] == bool(row.sample.mask[j])
            assert batch.generation_logprobs[i, j] == row.sample.logprobs[j]
        assert batch.advantages[i] == row.advantage
    assert int(batch.mask.sum()) == sum(row.num_tokens for row in samples)


def test_a_shared_mask_holds_nothing_but_zero_and_minus_infinity_and_no_empty_row(rows):
    batch = collate(cut(rows, 4, 3, 1), mask_dtype=torch.bfloat16)
    mask = batch.attention_mask
    assert mask.dtype == torch.bfloat16
    assert mask.shape == (3, 1, *[batch.input_ids.shape[1]] * 2)
    assert set(mask.unique().tolist()) == {0.0, -math.inf}
    assert (mask == 0.0).any(dim=-1).all(), "a softmax over nothing would be NaN"


def test_rows_keep_the_order_and_the_advantages_of_their_group(make_groups):
    group = make_groups()[2]
    rows, has_signal = group_rows(group, GRPO, 64)
    assert has_signal
    assert [row.sample for row in rows] == list(group.samples)
    expected = group_advantages(np.array([sample.reward for sample in group.samples]))
    assert [row.advantage for row in rows] == expected.tolist()


def test_a_constant_group_has_no_signal(make_groups):
    rows, has_signal = group_rows(make_groups(constant=(1,))[1], GRPO, 64)
    assert not has_signal
    assert [row.advantage for row in rows] == [0.0] * 4


def replaced(group, **changes):
    return dataclasses.replace(
        group, samples=(dataclasses.replace(group.samples[0], **changes), *group.samples[1:])
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.zeros(60, np.int32)}, "60 tokens, 2 logprobs"),
        ({"tokens": np.zeros(0, np.int32)}, "need a token each"),
        ({"logprobs": np.array([0.0, math.nan], np.float32)}, "not finite"),
        ({"reward": math.inf}, "finite"),
    ],
)
def test_malformed_samples_are_named(make_groups, changes, words):
    group = make_groups()[3]
    two = {
        "tokens": np.zeros(2, np.int32),
        "logprobs": np.zeros(2, np.float32),
        "mask": np.ones(2, np.uint8),
    }
    with pytest.raises(DataFault, match=words) as caught:
        group_rows(replaced(group, **{**two, **changes}), GRPO, 64)
    assert "prompt group 3 (p3)" in str(caught.value)


def test_a_sequence_may_be_as_long_as_the_limit_and_no_longer(make_groups):
    group = make_groups()[0]
    longest = len(group.prompt) + max(len(sample.tokens) for sample in group.samples)
    group_rows(group, GRPO, longest)
    with pytest.raises(DataFault, match=r"policy\.max_total_sequence_length"):
        group_rows(group, GRPO, longest - 1)
