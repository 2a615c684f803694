"""Padding: one length for a whole batch, whoever reads which part of it, and no row is ever cut."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike

from ratchet.data_plane.batch import BatchMeta, Group
from ratchet.data_plane.columns import Dense, Jagged
from ratchet.data_plane.errors import BadRequest
from ratchet.data_plane.padding import pad_length, padded
from tests.unit.data_plane.conftest import PARTITION, Rig


def jagged(lengths: Sequence[int], dtype: DTypeLike = np.int32) -> Jagged:
    return Jagged.of([np.arange(1, length + 1).astype(dtype) for length in lengths])


async def put(rig: Rig, *lengths: Sequence[int]) -> BatchMeta:
    groups = [Group(key, {"tokens": jagged(own)}) for key, own in enumerate(lengths)]
    return await rig.plane.put(PARTITION, groups)


async def test_readers_of_different_parts_pad_to_one_length(rig: Rig) -> None:
    batch = await put(rig, [3, 1], [9, 2], [4, 4])
    length = pad_length(batch, "tokens", multiple=8, at_most=64)
    shapes = []
    for part in (batch.slice(0, 1), batch.slice(1, 3)):
        for group in await rig.plane.get(part):
            column = group.columns["tokens"]
            assert isinstance(column, Jagged)
            shapes.append(padded(column, 0, length).shape)
    assert shapes == [(2, 16)] * 3


async def test_rounding_stops_at_what_is_allowed(rig: Rig) -> None:
    batch = await put(rig, [9], [10])
    assert pad_length(batch, "tokens", multiple=8, at_most=12) == 12
    assert pad_length(batch, "tokens", multiple=1, at_most=12) == 10
    assert pad_length(batch.slice(0, 0), "tokens", multiple=8, at_most=12) == 0


async def test_a_row_longer_than_allowed_is_named(rig: Rig) -> None:
    batch = await put(rig, [2], [3, 5, 9])
    with pytest.raises(BadRequest, match="row 1 of 'tokens' in group 1 has 5 values; at most 4"):
        pad_length(batch, "tokens", multiple=4, at_most=4)


async def test_only_jagged_columns_have_lengths(rig: Rig) -> None:
    batch = await rig.plane.put(PARTITION, [Group(0, {"reward": Dense(np.zeros(2))})])
    for column in ("reward", "tokens"):
        with pytest.raises(BadRequest, match=f"group 0 has no jagged column '{column}'"):
            pad_length(batch, column, multiple=1, at_most=8)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float32, ml_dtypes.bfloat16])
def test_rows_are_filled_up_in_their_own_dtype(dtype: DTypeLike) -> None:
    rectangle = padded(jagged([2, 0, 3], dtype), 7, 4)
    assert rectangle.dtype == dtype
    assert rectangle.tolist() == [[1, 2, 7, 7], [7, 7, 7, 7], [1, 2, 3, 7]]


def test_nothing_is_cut_and_nothing_wraps_around() -> None:
    with pytest.raises(BadRequest, match="row 1 has 3 values, which do not fit into 2"):
        padded(jagged([2, 3]), 0, 2)
    with pytest.raises(BadRequest, match="uint8 does not hold the pad value -1"):
        padded(jagged([1], np.uint8), -1, 2)
    with pytest.raises(BadRequest, match="only rows of single values"):
        padded(Jagged(np.zeros((3, 2)), (1, 2)), 0, 4)
