"""Groups of every shape the journal has to keep, and a comparison that looks at every bit."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ratchet.journal.writer import SEGMENT_BYTES, JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.ids import WeightVersion

MakeGroup = Callable[..., PromptGroup]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "demo" / "journal"


@pytest.fixture
def open_writer(folder: Path) -> Iterator[Callable[..., JournalWriter]]:
    opened: list[JournalWriter] = []

    def open_(
        incarnation: int = 1, name: str = "generator-0", segment_bytes: int = SEGMENT_BYTES
    ) -> JournalWriter:
        writer = JournalWriter(folder, name, segment_bytes)
        opened.append(writer)
        writer.adopt(incarnation)
        return writer

    yield open_
    for writer in opened:
        writer.close()


@pytest.fixture
def make_group() -> MakeGroup:
    def make(key: int, incarnation: int = 1, samples: int = 2, text: str = " 17\n") -> PromptGroup:
        rng = np.random.default_rng(key)
        version = WeightVersion(incarnation=incarnation, step=key, digest=f"{key:032x}")
        return PromptGroup(
            key=key,
            incarnation=incarnation,
            problem_id=f"{key}+1",
            prompt=rng.integers(0, 50_000, 3 + key % 3, dtype=np.int32),
            version_start=version,
            version_end=version.model_copy(update={"step": key + 1}),
            samples=tuple(_sample(rng, number, text) for number in range(samples)),
        )

    return make


def _sample(rng: np.random.Generator, number: int, text: str) -> Sample:
    length = 1 + 2 * number
    return Sample(
        tokens=rng.integers(0, 50_000, length, dtype=np.int32),
        logprobs=-rng.random(length, dtype=np.float32),
        mask=rng.integers(0, 2, length, dtype=np.uint8),
        finish_reason="length" if number % 2 else "stop",
        text=text,
        reward=0.1 * number,
        rewards={"exact": 0.1 * number, "äußere form": -0.0},
        correct=number % 2 == 0,
        seed=2**63 - 1 - number,
    )


@pytest.fixture
def plain() -> Callable[[PromptGroup], object]:
    """Everything that is in a group, with arrays as (dtype, bytes) and floats as hex."""

    def describe(value: object) -> object:
        if isinstance(value, np.ndarray):
            return (str(value.dtype), value.shape, value.tobytes())
        if isinstance(value, float):
            return value.hex()
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            return {field.name: describe(getattr(value, field.name)) for field in fields}
        if isinstance(value, dict):
            return [(key, describe(item)) for key, item in value.items()]
        return tuple(map(describe, value)) if isinstance(value, tuple) else value

    return describe
