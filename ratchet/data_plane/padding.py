"""Jagged columns as rectangles, of a length that everybody who takes part in a batch agrees on.

The length is decided once, from the headers of the whole batch. Readers of parts of it that each padded
to their own longest row would run forward passes of different shapes, and what they do together would not
fit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.data_plane.batch import BatchMeta
from ratchet.data_plane.columns import Jagged
from ratchet.data_plane.errors import BadRequest


def pad_length(batch: BatchMeta, column: str, multiple: int, at_most: int) -> int:
    """The longest row of that column in the batch, rounded up to a multiple; no cell is fetched.

    The rounding stops at `at_most`, which a model cannot pass. Raises BadRequest for a row that is
    longer, and for a group whose column is not there or not jagged.
    """
    if multiple < 1:
        raise BadRequest(f"rows cannot be padded to multiples of {multiple}")
    longest = 0
    for group in batch.groups:
        header = group.headers.get(column)
        if header is None or header.kind != "jagged":
            raise BadRequest(f"group {group.key} has no jagged column {column!r}")
        for row, length in enumerate(header.lengths):
            if length > at_most:
                raise BadRequest(
                    f"row {row} of {column!r} in group {group.key} has {length} values; "
                    f"at most {at_most} are allowed"
                )
        longest = max(longest, group.longest(column))
    return min(-(-longest // multiple) * multiple, at_most)


def padded(column: Jagged, pad_value: float, length: int) -> NDArray[Any]:
    """[B, L] of the column's dtype: each row from the left, then `pad_value`. Which value means nothing is
    the caller's to know: the tokenizer's for token ids, 0 for masks and log-probabilities.

    Raises BadRequest for a row longer than `length` (it is never cut), for values that are not numbers of
    one dimension, and for a pad value that the dtype does not hold.
    """
    values = column.values
    if values.ndim != 1:
        raise BadRequest(f"only rows of single values can be padded; these have the shape {values.shape[1:]}")
    for row, own in enumerate(column.lengths):
        if own > length:
            raise BadRequest(f"row {row} has {own} values, which do not fit into {length}")
    fill = np.asarray(pad_value).astype(values.dtype)
    if np.issubdtype(values.dtype, np.integer) and fill != pad_value:
        raise BadRequest(f"{values.dtype.name} does not hold the pad value {pad_value}")
    lengths = np.asarray(column.lengths, np.int64)
    rectangle = np.full((len(lengths), length), fill, values.dtype)
    rectangle[np.arange(length) < lengths[:, None]] = values
    return rectangle
