"""Groups that cross incarnations: sampled by weights that the run's path no longer has."""

from ratchet.rollouts.group import PromptGroup
from ratchet.spec.ids import WeightVersion


def crossed(group: PromptGroup, version: WeightVersion, max_staleness: int = 0) -> bool:
    """Whether a journaled group was sampled by other weights than `version`, those its step is trained from,
    and not because an asynchronous run was to sample it up to `max_staleness` steps before.

    Only the digest tells: re-training that ends in the same bits has the same weights, under another
    incarnation. A crossed group is off-policy whatever its step: its importance correction is mandatory.
    """
    return any(
        sampled.digest != version.digest and not 0 < version.step - sampled.step <= max_staleness
        for sampled in (group.version_start, group.version_end)
    )
