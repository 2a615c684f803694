"""Columns of a prompt group, and the bytes they travel as.

A backend moves cells: flat arrays of bytes, one for each column of a group. What they mean is in their
headers, which travel with the metadata. So every dtype that NumPy knows round-trips on every backend
(bfloat16 and float8 as those of ml_dtypes), ragged columns need no padding on the way, and a cell that
comes back short is noticed.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ratchet.data_plane.errors import BadRequest
from ratchet.data_plane.wire import Wired

Cell = NDArray[np.uint8]
"""The bytes of one column of one group, [num_bytes]."""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A value of the same shape for each row."""

    values: NDArray[Any]
    """[N, ...]."""


@dataclass(frozen=True, slots=True, eq=False)
class Jagged:
    """Values of different lengths for each row, one after the other."""

    values: NDArray[Any]
    """[sum of lengths, ...]."""
    lengths: tuple[int, ...]
    """N of them."""

    def rows(self) -> list[NDArray[Any]]:
        """Each row's own, as views."""
        ends = np.cumsum(self.lengths)
        return np.split(self.values, ends[:-1]) if self.lengths else []

    @staticmethod
    def of(rows: Sequence[NDArray[Any]]) -> "Jagged":
        """From a value for each row; at least one. All of one dtype and of one trailing shape."""
        if len({(row.dtype, row.shape[1:]) for row in rows}) != 1:
            raise BadRequest("the rows of a jagged column need one dtype and one trailing shape")
        return Jagged(np.concatenate(rows), tuple(len(row) for row in rows))


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Anything that can be pickled, for each row. For small things: it is copied more often than arrays
    are."""

    values: tuple[object, ...]


Column = Dense | Jagged | Objects


@dataclass(frozen=True, slots=True)
class Header(Wired):
    """What the bytes of a cell mean."""

    kind: Literal["dense", "jagged", "objects"]
    dtype: str
    shape: tuple[int, ...]
    lengths: tuple[int, ...]
    """Of jagged columns; else empty."""
    num_bytes: int

    @property
    def num_rows(self) -> int:
        return len(self.lengths) if self.kind == "jagged" else self.shape[0]


def encode(name: str, column: Column) -> tuple[Header, Cell]:
    """A column's header and bytes; a view where its array is contiguous. Raises BadRequest."""
    if isinstance(column, Objects):
        try:
            raw = pickle.dumps(column.values, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever an object's own __reduce__ raises
            raise BadRequest(f"column {name!r} has objects that cannot be pickled: {error}") from error
        cell = np.frombuffer(raw, np.uint8)
        return Header("objects", "object", (len(column.values),), (), len(cell)), cell
    if isinstance(column.values, np.ma.MaskedArray):
        raise BadRequest(f"column {name!r} is a masked array: give its mask as a column of its own")
    values = np.ascontiguousarray(column.values)
    if values.dtype.kind in "OSTU" or values.dtype.type is np.void:
        raise BadRequest(f"column {name!r} is an array of {values.dtype}: give it as Objects")
    values = values.astype(values.dtype.newbyteorder("="), copy=False)  # a dtype's name tells no byte order
    if column.values.ndim == 0:
        raise BadRequest(f"column {name!r} has no rows: give a value for each row, or one that all share")
    if isinstance(column, Jagged) and sum(column.lengths) != len(values):
        raise BadRequest(
            f"column {name!r} has {len(values)} values for lengths that add up to {sum(column.lengths)}"
        )
    if isinstance(column, Jagged) and min(column.lengths, default=0) < 0:
        raise BadRequest(f"column {name!r} has a row of {min(column.lengths)} values")
    cell = values.reshape(-1).view(np.uint8)
    lengths = tuple(map(int, column.lengths)) if isinstance(column, Jagged) else ()
    kind = "jagged" if isinstance(column, Jagged) else "dense"
    return Header(kind, values.dtype.name, values.shape, lengths, cell.nbytes), cell


def decode(header: Header, cell: Cell) -> Column:
    """The column again: a view of the cell where its alignment allows. Raises ValueError for a cell of
    another length than the header's."""
    if cell.nbytes != header.num_bytes:
        raise ValueError(f"{cell.nbytes} bytes where {header.num_bytes} were put")
    if header.kind == "objects":
        return Objects(pickle.loads(cell.tobytes()))
    dtype = dtype_of(header.dtype)
    if cell.ctypes.data % dtype.alignment:
        cell = cell.copy()
    values = cell.view(dtype).reshape(header.shape)
    return Jagged(values, header.lengths) if header.kind == "jagged" else Dense(values)


def dtype_of(name: str) -> np.dtype[Any]:
    """By the name that NumPy has for it, or ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(getattr(ml_dtypes, name))
