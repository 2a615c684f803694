"""Columns and their bytes: what comes back is what was put, or the put is refused."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ratchet.data_plane.columns import Cell, Column, Dense, Jagged, Objects, decode, dtype_of, encode
from ratchet.data_plane.errors import BadRequest

OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")


def there_and_back(column: Column) -> Column:
    header, cell = encode("c", column)
    assert (cell.dtype, cell.ndim, cell.nbytes) == (np.uint8, 1, header.num_bytes)
    return decode(header, cell)


def arrays(rows: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """[rows, ...] of any dtype, and of either byte order."""
    dtypes = st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.unsigned_integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?"),
        hnp.complex_number_dtypes(endianness="?"),
    )
    shapes = st.tuples(rows, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    return st.tuples(dtypes, shapes).flatmap(lambda each: hnp.arrays(each[0], (each[1][0], *each[1][1])))


def assert_same(found: np.ndarray[Any, Any], put: np.ndarray[Any, Any]) -> None:
    native = put.astype(put.dtype.newbyteorder("="))
    assert (found.dtype, found.shape) == (native.dtype, native.shape)
    assert found.tobytes() == native.tobytes()


@settings(max_examples=200, deadline=None)
@given(arrays(st.integers(0, 4)), st.booleans())
def test_any_array_comes_back_bit_for_bit(values: np.ndarray[Any, Any], reverse: bool) -> None:
    put = values[::-1] if reverse else values
    found = there_and_back(Dense(put))
    assert isinstance(found, Dense)
    assert_same(found.values, put)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=5), st.sampled_from(["int16", ">i4", "float32", "bool"]))
def test_any_ragged_rows_come_back_each_by_itself(lengths: list[int], dtype: str) -> None:
    values = np.arange(sum(lengths) * 6).reshape(-1, 3, 2).astype(dtype)
    found = there_and_back(Jagged(values, tuple(lengths)))
    assert isinstance(found, Jagged)
    assert_same(found.values, values)
    assert [len(row) for row in found.rows()] == lengths


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.text() | st.dictionaries(st.text(), st.integers()), max_size=4))
def test_any_objects_come_back(values: list[object]) -> None:
    found = there_and_back(Objects(tuple(values)))
    assert isinstance(found, Objects)
    assert found.values == tuple(values)


@pytest.mark.parametrize("name", OF_ML_DTYPES)
def test_dtypes_that_numpy_lacks_come_back(name: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
    found = there_and_back(Dense(values))
    assert isinstance(found, Dense)
    assert_same(found.values, values)
    assert dtype_of(name) == values.dtype


def test_an_array_of_the_other_byte_order_keeps_its_values() -> None:
    found = there_and_back(Dense(np.array([1.0, -2.5], ">f4")))
    assert isinstance(found, Dense)
    assert found.values.tolist() == [1.0, -2.5]


@pytest.mark.parametrize("offset", [1, 4])
def test_a_cell_at_any_address_is_read(offset: int) -> None:
    header, cell = encode("c", Dense(np.array([1.5, 2.5])))
    buffer = np.zeros(cell.nbytes + 16, np.uint8)
    moved: Cell = buffer[offset : offset + cell.nbytes]
    moved[:] = cell
    found = decode(header, moved)
    assert isinstance(found, Dense)
    assert found.values.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_cell_of_another_length_is_not_read(change: int) -> None:
    header, cell = encode("c", Dense(np.zeros(4, np.float32)))
    with pytest.raises(ValueError, match=f"{16 + change} bytes where 16 were put"):
        decode(header, np.resize(cell, cell.nbytes + change))


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (Dense(np.array([None, {}], object)), "give it as Objects"),
        (Dense(np.array(["text"])), "give it as Objects"),
        (Dense(np.array([b"bytes"])), "give it as Objects"),
        (Dense(np.zeros(2, [("a", "i4"), ("b", "f4")])), "give it as Objects"),
        (Dense(np.array(1.0)), "has no rows"),
        (Dense(np.ma.masked_array([1, 2], [0, 1])), "masked array"),
        (Objects((lambda: None,)), "cannot be pickled"),
        (Jagged(np.arange(3), (1, 1)), "3 values for lengths that add up to 2"),
        (Jagged(np.arange(3), (4, -1)), "a row of -1 values"),
    ],
)
def test_what_would_not_come_back_is_refused_by_name(column: Column, why: str) -> None:
    with pytest.raises(BadRequest, match=f"column 'logprobs' .*{why}"):
        encode("logprobs", column)


def test_ragged_rows_need_one_dtype_and_one_trailing_shape() -> None:
    rows: list[list[np.ndarray[Any, Any]]] = [
        [],
        [np.zeros(1, np.int32), np.zeros(1, np.int64)],
        [np.zeros((1, 2)), np.zeros((1, 3))],
    ]
    for each in rows:
        with pytest.raises(BadRequest, match="one dtype and one trailing shape"):
            Jagged.of(each)
