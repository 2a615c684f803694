"""Batches are cut and joined as lists are, and nothing else changes."""

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data_plane.batch import BatchMeta, GroupMeta, Placement
from ratchet.data_plane.columns import Header
from ratchet.data_plane.errors import BadRequest


def meta(key: int, *columns: str, partition: str = "p") -> GroupMeta:
    """Three rows in each column, of 0, of `key` and of one value."""
    return GroupMeta(
        partition=partition,
        key=key,
        headers={name: Header("jagged", "int8", (key + 1,), (0, key, 1), key + 1) for name in columns},
        placements={name: Placement(f"s{key}", None, key + 1) for name in columns},
        tags={"key": key},
        producer="a",
        created_at=0.0,
        leased_by={},
        acked=(),
    )


def batch(*keys: int) -> BatchMeta:
    return BatchMeta("p", tuple(meta(key, "a") for key in keys))


unique = st.lists(st.integers(0, 50), unique=True, max_size=8)


@settings(max_examples=100, deadline=None)
@given(unique, st.integers(-9, 9), st.integers(-9, 9))
def test_slices_are_those_of_a_list(keys: list[int], start: int, end: int) -> None:
    assert batch(*keys).slice(start, end).keys == keys[start:end]


@settings(max_examples=100, deadline=None)
@given(unique, st.integers(0, 8))
def test_what_is_cut_and_joined_is_whole_again(keys: list[int], at: int) -> None:
    whole = batch(*keys)
    assert whole.slice(0, at).concat(whole.slice(at, len(keys))) == whole


@settings(max_examples=100, deadline=None)
@given(unique, st.sets(st.integers(0, 50)))
def test_a_batch_is_split_without_loss_and_in_order(keys: list[int], chosen: set[int]) -> None:
    kept, others = batch(*keys).partitioned(lambda group: group.key in chosen)
    assert kept.keys == [key for key in keys if key in chosen]
    assert others == batch(*keys).drop(chosen)
    assert sorted(kept.keys + others.keys) == sorted(keys)


@settings(max_examples=100, deadline=None)
@given(unique.flatmap(lambda keys: st.tuples(st.just(keys), st.permutations(keys))))
def test_a_subset_comes_in_the_order_asked_for(case: tuple[list[int], list[int]]) -> None:
    keys, order = case
    assert batch(*keys).subset(order) == batch(*order)


def test_tags_are_added_to_a_copy_and_the_later_counts() -> None:
    before = batch(1, 2)
    after = before.with_tags([{"x": 1}, {"key": 9}])
    assert (after.tags("key"), after.tags("x")) == ([1, 9], [1, None])
    assert (before.tags("key"), before.tags("x")) == ([1, 2], [None, None])


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: batch(1, 2).subset([3, 1, 4]), "no groups 3, 4"),
        (lambda: batch(1, 2).concat(batch(3), batch(2)), "groups in common"),
        (lambda: batch(1).concat(BatchMeta("q", ())), "batches of q do not go with one of p"),
        (lambda: batch(1, 2).with_tags([{}]), "1 mappings of tags for 2 groups"),
    ],
)
def test_what_makes_no_batch_is_refused(call: Callable[[], BatchMeta], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        call()


def test_fields_are_the_columns_that_every_group_has() -> None:
    assert BatchMeta("p", (meta(1, "b", "a", "c"), meta(2, "c", "a"))).fields == ["a", "c"]
    assert BatchMeta("p", ()).fields == []


def test_sizes_are_known_without_the_contents() -> None:
    group = meta(4, "a", "b")
    assert (group.num_bytes, group.num_rows, group.longest("b")) == (10, 3, 4)
    assert meta(4).num_rows == 0


def test_a_batch_goes_from_process_to_process() -> None:
    assert pickle.loads(pickle.dumps(batch(1, 2))) == batch(1, 2)
