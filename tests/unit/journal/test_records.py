"""A group that went through Arrow is the same group, bit for bit."""

import dataclasses

import numpy as np
import pytest

from ratchet.journal.records import from_batch, to_batch


def test_groups_come_back_bit_for_bit(make_group, plain) -> None:
    groups = [make_group(0, samples=1), make_group(7, samples=5), make_group(2**40, incarnation=3)]
    assert [plain(group) for group in from_batch(to_batch(groups))] == [plain(group) for group in groups]


@pytest.mark.parametrize("text", ["", "two\nlines", "naïve – 数学 🙂 \x00 \ufffd"])
def test_any_text_comes_back(make_group, plain, text: str) -> None:
    group = make_group(1, text=text)
    assert plain(*from_batch(to_batch([group]))) == plain(group)


def test_unusual_numbers_come_back(make_group, plain) -> None:
    group = make_group(1)
    logprobs = np.array([-np.inf], dtype=np.float32)
    odd = dataclasses.replace(group.samples[0], logprobs=logprobs, reward=-0.1 - 0.2, rewards={})
    group = dataclasses.replace(group, samples=(odd, group.samples[1]))
    assert plain(*from_batch(to_batch([group]))) == plain(group)


def test_a_slice_of_a_batch_holds_its_own_groups(make_group, plain) -> None:
    groups = [make_group(key, samples=1 + key) for key in range(4)]
    assert [plain(group) for group in from_batch(to_batch(groups).slice(1, 2))] == [
        plain(group) for group in groups[1:3]
    ]


def test_arrays_that_come_back_may_be_written_to(make_group) -> None:
    (group,) = from_batch(to_batch([make_group(1)]))
    group.samples[1].tokens[0] = 5
    assert group.samples[1].tokens[0] == 5
