"""A journaled group crosses incarnations if its weights are not those it is trained at."""

import dataclasses

import pytest

from ratchet.journal.crossing import crossed
from ratchet.rollouts.group import PromptGroup
from ratchet.spec.ids import WeightVersion


def version(digest: str, incarnation: int = 1, step: int = 3) -> WeightVersion:
    return WeightVersion(incarnation=incarnation, step=step, digest=digest)


def sampled_by(group: PromptGroup, start: WeightVersion, end: WeightVersion) -> PromptGroup:
    return dataclasses.replace(group, version_start=start, version_end=end)


@pytest.mark.parametrize(
    ("start", "end", "trained_at", "expected"),
    [
        (version("a"), version("a"), version("a"), False),
        # Re-trained to the same bits: the same weights, whoever trained them.
        (version("a", incarnation=1), version("a", incarnation=1), version("a", incarnation=2), False),
        # Re-trained to other bits, at the same step.
        (version("a", incarnation=1), version("a", incarnation=1), version("b", incarnation=2), True),
        # Refitted in flight, with weights that the path no longer has.
        (version("a"), version("b"), version("a"), True),
        (version("b"), version("a"), version("a"), True),
    ],
)
def test_only_the_digest_tells(
    make_group, start: WeightVersion, end: WeightVersion, trained_at: WeightVersion, expected: bool
) -> None:
    assert crossed(sampled_by(make_group(1), start, end), trained_at) is expected


@pytest.mark.parametrize(
    ("sampled", "max_staleness", "expected"),
    [
        (version("a", step=2), 1, False),  # as planned
        (version("a", step=1), 1, True),  # older than that
        (version("a", step=2), 0, True),
        (version("a", step=3), 1, True),  # of the same step, and another path
        (version("a", step=4), 1, True),  # of a step that the path has not reached again
    ],
)
def test_what_was_to_be_sampled_ahead_is_not_crossed(
    make_group, sampled: WeightVersion, max_staleness: int, expected: bool
) -> None:
    group = sampled_by(make_group(1), sampled, sampled)
    assert crossed(group, version("b", incarnation=2, step=3), max_staleness) is expected
