"""Prompt groups as Arrow records: one row a group, tokens and logprobs as flat lists; and tombstones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.ids import WeightVersion

_VERSION = pa.struct([("incarnation", pa.int64()), ("step", pa.int64()), ("digest", pa.string())])
_SAMPLE = pa.struct(
    [
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("mask", pa.list_(pa.uint8())),
        ("finish_reason", pa.string()),
        ("text", pa.string()),
        ("reward", pa.float64()),
        ("rewards", pa.map_(pa.string(), pa.float64())),
        ("correct", pa.bool_()),
        ("seed", pa.int64()),
    ]
)
SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("incarnation", pa.int64()),
        ("problem_id", pa.string()),
        ("prompt", pa.list_(pa.int32())),
        ("version_start", _VERSION),
        ("version_end", _VERSION),
        ("samples", pa.list_(_SAMPLE)),
    ]
)
"""Layout of every segment; a segment with another one was written by another version of Ratchet."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A draw that will never be trained: dropped, replaced or evicted."""

    key: int
    incarnation: int
    """The incarnation that gave it up."""
    cause: str
    """One line, for people."""


def to_batch(groups: Sequence[PromptGroup]) -> pa.RecordBatch:
    """One row per group, in order. Exact: `from_batch` gives back equal groups, bit for bit."""
    samples = [sample for group in groups for sample in group.samples]
    sample_columns = [
        _lists([sample.tokens for sample in samples], pa.int32()),
        _lists([sample.logprobs for sample in samples], pa.float32()),
        _lists([sample.mask for sample in samples], pa.uint8()),
        pa.array([sample.finish_reason for sample in samples], pa.string()),
        pa.array([sample.text for sample in samples], pa.string()),
        pa.array([sample.reward for sample in samples], pa.float64()),
        pa.array([list(sample.rewards.items()) for sample in samples], pa.map_(pa.string(), pa.float64())),
        pa.array([sample.correct for sample in samples], pa.bool_()),
        pa.array([sample.seed for sample in samples], pa.int64()),
    ]
    columns = [
        pa.array([group.key for group in groups], pa.int64()),
        pa.array([group.incarnation for group in groups], pa.int64()),
        pa.array([group.problem_id for group in groups], pa.string()),
        _lists([group.prompt for group in groups], pa.int32()),
        pa.array([group.version_start.model_dump() for group in groups], _VERSION),
        pa.array([group.version_end.model_dump() for group in groups], _VERSION),
        pa.ListArray.from_arrays(
            _offsets([len(group.samples) for group in groups]),
            pa.StructArray.from_arrays(sample_columns, fields=list(_SAMPLE)),
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def tombstone_batch(keys: Sequence[int], incarnation: int) -> pa.RecordBatch:
    """One row per key that says no more than which incarnation gave it up."""
    given = [pa.array(keys, pa.int64()), pa.array([incarnation] * len(keys), pa.int64())]
    blank = [pa.nulls(len(keys), field.type) for field in list(SCHEMA)[len(given) :]]
    return pa.RecordBatch.from_arrays([*given, *blank], schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> list[PromptGroup]:
    """The groups of a batch. Arrays are copies: they outlive the batch and may be written to."""
    prompts = _arrays(batch.column("prompt"))
    samples = _samples(batch.column("samples").flatten())
    ends = np.cumsum(batch.column("samples").value_lengths().to_numpy())
    rows = batch.drop_columns(["prompt", "samples"]).to_pylist()
    starts = [0, *ends[:-1]]
    return [
        PromptGroup(
            key=row["key"],
            incarnation=row["incarnation"],
            problem_id=row["problem_id"],
            prompt=prompt,
            version_start=WeightVersion(**row["version_start"]),
            version_end=WeightVersion(**row["version_end"]),
            samples=tuple(samples[start:end]),
        )
        for row, prompt, start, end in zip(rows, prompts, starts, ends, strict=True)
    ]


def _samples(column: pa.StructArray) -> list[Sample]:
    fields = dict(zip((field.name for field in _SAMPLE), column.flatten(), strict=True))
    values = {
        name: _arrays(field) if pa.types.is_list(field.type) else field.to_pylist()
        for name, field in fields.items()
    }
    values["rewards"] = [dict(pairs) for pairs in values["rewards"]]
    return [Sample(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())


def _lists(arrays: Sequence[NDArray[Any]], dtype: pa.DataType) -> pa.ListArray:
    flat = np.concatenate(arrays) if arrays else np.empty(0)
    return pa.ListArray.from_arrays(_offsets([len(array) for array in arrays]), pa.array(flat, dtype))


def _arrays(column: pa.ListArray) -> list[NDArray[Any]]:
    flat = column.flatten().to_numpy()
    ends = np.cumsum(column.value_lengths().to_numpy())
    return [array.copy() for array in np.split(flat, ends[:-1])] if len(ends) else []
