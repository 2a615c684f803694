"""Prompt groups as columns of the data plane."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from ratchet.data_plane.batch import Group
from ratchet.data_plane.columns import Dense, Jagged, Objects
from ratchet.data_plane.filters import WEIGHT_VERSION
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.ids import WeightVersion

PROMPT, TOKENS, LOGPROBS, MASK, REWARD = "prompt", "tokens", "logprobs", "mask", "reward"
DETAILS, ORIGIN = "details", "origin"
"""Of each sample: why it ended, its text, its reward by component, whether it is correct, its seed. Of the
group: its problem, and the versions that sampled its first and its last token."""


def to_columns(group: PromptGroup) -> Group:
    """Exact: `from_columns` gives back an equal group, bit for bit. Arrays are not copied."""
    samples = group.samples
    details = tuple(
        (sample.finish_reason, sample.text, sample.rewards, sample.correct, sample.seed) for sample in samples
    )
    origin = (group.problem_id, _told(group.version_start), _told(group.version_end))
    return Group(
        key=group.key,
        columns={
            PROMPT: Jagged(group.prompt, (len(group.prompt),)),
            TOKENS: Jagged.of([sample.tokens for sample in samples]),
            LOGPROBS: Jagged.of([sample.logprobs for sample in samples]),
            MASK: Jagged.of([sample.mask for sample in samples]),
            REWARD: Dense(np.array([sample.reward for sample in samples], np.float64)),
            DETAILS: Objects(details),
            ORIGIN: Objects((origin,)),
        },
        tags={
            "incarnation": group.incarnation,
            WEIGHT_VERSION: group.version_start.step,
            "reward_mean": sum(sample.reward for sample in samples) / len(samples),
        },
    )


def from_columns(group: Group) -> PromptGroup:
    """Arrays may be views of what the data plane keeps: nobody writes to a finished group."""
    columns = group.columns
    (problem_id, start, end) = cast("tuple[str, _Told, _Told]", cast("Objects", columns[ORIGIN]).values[0])
    details = cast(
        "Sequence[tuple[str, str, dict[str, float], bool, int]]", cast("Objects", columns[DETAILS]).values
    )
    arrays = [cast("Jagged", columns[name]).rows() for name in (TOKENS, LOGPROBS, MASK)]
    rewards = cast("Dense", columns[REWARD]).values.tolist()
    samples = tuple(
        Sample(tokens, logprobs, mask, reason, text, reward, components, correct, seed)
        for (reason, text, components, correct, seed), reward, tokens, logprobs, mask in zip(
            details, rewards, *arrays, strict=True
        )
    )
    return PromptGroup(
        key=group.key,
        incarnation=cast("int", group.tags["incarnation"]),
        problem_id=problem_id,
        prompt=cast("Jagged", columns[PROMPT]).values,
        version_start=_version(start),
        version_end=_version(end),
        samples=samples,
    )


_Told = tuple[int, int, str]


def _told(version: WeightVersion) -> _Told:
    return version.incarnation, version.step, version.digest


def _version(told: _Told) -> WeightVersion:
    incarnation, step, digest = told
    return WeightVersion(incarnation=incarnation, step=step, digest=digest)
