import dataclasses
import math

import numpy as np
import pytest

from ratchet.algorithms.advantages import group_advantages
from ratchet.policy.batch import collate, group_rows
from ratchet.spec.faults import DataFault
from ratchet.spec.run_spec import GrpoSpec

GRPO = GrpoSpec(num_prompts_per_step=6, num_generations_per_prompt=4, max_num_steps=1)


@pytest.fixture
def rows(make_groups):
    return [row for group in make_groups() for row in group_rows(group, GRPO, 64)[0]]


def test_every_row_can_be_read_back(rows):
    batch = collate(rows)
    prompt = batch.input_ids.shape[1] + 1 - batch.targets.shape[1]
    assert prompt == max(len(row.prompt) for row in rows)
    for i, row in enumerate(rows):
        p, t = len(row.prompt), len(row.sample.tokens)
        fed = batch.input_ids[i][batch.attention_mask[i] == 1].tolist()
        whole = [*row.prompt.tolist(), *row.sample.tokens.tolist()]
        assert fed == whole[: batch.input_ids.shape[1] - (prompt - p)]
        assert batch.position_ids[i][batch.attention_mask[i] == 1].tolist() == list(range(len(fed)))
        # Column `prompt - 1` predicts the first response token, and so on.
        assert batch.input_ids[i, prompt - 1] == row.prompt[-1]
        assert batch.targets[i, :t].tolist() == row.sample.tokens.tolist()
        assert batch.mask[i].tolist() == [bool(m) for m in row.sample.mask] + [False] * (
            batch.mask.shape[1] - t
        )
        assert batch.generation_logprobs[i, :t].tolist() == row.sample.logprobs.tolist()
        assert batch.advantages[i].item() == np.float32(row.advantage)
    assert int(batch.mask.sum()) == sum(row.num_tokens for row in rows)


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
