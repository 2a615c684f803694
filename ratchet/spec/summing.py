"""The receipt of a rollout, from what is known of its groups."""

from collections.abc import Sequence
from typing import Protocol

from ratchet.spec.ids import WeightVersion
from ratchet.spec.receipts import RolloutReceipt


class GroupSummary(Protocol):
    """What a receipt needs to know of a finished group."""

    @property
    def replayed(self) -> bool: ...
    @property
    def rewards(self) -> Sequence[float]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def truncated(self) -> int: ...
    @property
    def correct(self) -> int: ...


def rollout_receipt(
    op: str,
    positions: tuple[int, int],
    version: WeightVersion,
    groups: Sequence[GroupSummary],
    *,
    dropped: Sequence[int] = (),
    samples_generated: int = 0,
    engine_s: float = 0.0,
    inflight_s: float = 0.0,
) -> RolloutReceipt:
    """`positions`: [start, end) of the cursor. Of no group, means are 0."""
    rewards = [reward for group in groups for reward in group.rewards]
    count = max(1, len(rewards))
    mean = sum(rewards) / count
    num_tokens = sum(group.num_tokens for group in groups)
    return RolloutReceipt(
        op=op,
        engine_s=engine_s,
        cursor_start=positions[0],
        cursor_end=positions[1],
        num_groups=len(groups),
        num_samples=len(rewards),
        dropped=tuple(dropped),
        replayed_groups=sum(group.replayed for group in groups),
        num_tokens=num_tokens,
        reward_mean=mean,
        reward_std=(sum((reward - mean) ** 2 for reward in rewards) / count) ** 0.5,
        accuracy=sum(group.correct for group in groups) / count,
        length_mean=num_tokens / count,
        truncated_fraction=sum(group.truncated for group in groups) / count,
        samples_generated=samples_generated,
        inflight_s=inflight_s,
        version=version,
    )
