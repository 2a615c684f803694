"""What is sent through data planes when they are measured: the same bytes for everybody."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.data_plane.batch import Group
from ratchet.data_plane.columns import Dense, encode
from ratchet.rollouts.columns import to_columns
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.ids import WeightVersion

SEED = 1
PROMPTS, SAMPLES = 64, 8
PROMPT_LENGTHS = (64, 513)
RESPONSE_MEDIAN, RESPONSE_SPREAD, RESPONSE_LONGEST = 512, 0.8, 4096
"""Lengths of responses are log-normal, cut at the longest."""
CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    groups: int
    cell: int
    """Bytes of the one cell of each group; 0: a batch of GRPO."""

    @property
    def rows(self) -> int:
        """Samples."""
        return self.groups if self.cell else self.groups * SAMPLES


CASES = (
    Case("1kb", 512, 2**10),
    Case("64kb", 128, 64 * 2**10),
    Case("8mb", 8, 8 * 2**20),
    Case("grpo", PROMPTS, 0),
)


def plain_rows(case: Case) -> np.ndarray:
    """[groups, bytes]."""
    return np.random.default_rng(SEED).integers(0, 256, (case.groups, case.cell), np.uint8)


def prompt_groups(case: Case) -> list[PromptGroup]:
    """As rollouts make them."""
    draw = np.random.default_rng(SEED)
    version = WeightVersion(incarnation=1, step=3, digest="ab" * 16)
    groups: list[PromptGroup] = []
    for key in range(case.groups):
        lengths = draw.lognormal(np.log(RESPONSE_MEDIAN), RESPONSE_SPREAD, SAMPLES)
        samples = tuple(_sample(draw, seed, length) for seed, length in enumerate(_whole(lengths)))
        prompt = draw.integers(0, 50_000, draw.integers(*PROMPT_LENGTHS), np.int32)
        groups.append(PromptGroup(key, 1, f"problem-{key}", prompt, version, version, samples))
    return groups


def _whole(lengths: np.ndarray) -> Sequence[int]:
    return lengths.clip(1, RESPONSE_LONGEST).astype(int).tolist()


def _sample(draw: np.random.Generator, seed: int, length: int) -> Sample:
    reward = float(draw.integers(0, 2))
    return Sample(
        tokens=draw.integers(0, 50_000, length, np.int32),
        logprobs=-draw.random(length, np.float32),
        mask=np.ones(length, np.uint8),
        finish_reason="length" if length == RESPONSE_LONGEST else "stop",
        text=draw.bytes(CHARACTERS_A_TOKEN * length // 2).hex(),
        reward=reward,
        rewards={"correct": reward},
        correct=bool(reward),
        seed=seed,
    )


def ratchet_groups(case: Case) -> tuple[list[Group], int]:
    """A case as the data plane takes it, and its bytes."""
    if case.cell:
        rows = plain_rows(case)
        groups = [Group(key, {"values": Dense(rows[key : key + 1])}) for key in range(case.groups)]
    else:
        groups = [to_columns(group) for group in prompt_groups(case)]
    num_bytes = sum(
        encode(name, column)[0].num_bytes for group in groups for name, column in group.columns.items()
    )
    return groups, num_bytes
