"""Groups that cross incarnations: sampled by weights that the run's path no longer has."""

from ratchet.rollouts.group import PromptGroup
from ratchet.spec.ids import WeightVersion


def crossed(group: PromptGroup, version: WeightVersion) -> bool:
    """Whether a journaled group was sampled by other weights than `version`, those its step is trained from.

    Only the digest tells: re-training that ends in the same bits has the same weights, under another
    incarnation. A crossed group is off-policy whatever its step: its importance correction is mandatory.
    """
    return any(sampled.digest != version.digest for sampled in (group.version_start, group.version_end))
