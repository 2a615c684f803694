"""The data plane's partition that rollouts fill and training empties."""

from ratchet.data_plane.protocol import DataPlane

TRAIN_PARTITION = "train"
TRAIN_TASK = "train"


def register(data_plane: DataPlane) -> None:
    """Make it. Producer and consumer both do, whoever comes first."""
    data_plane.register_partition(TRAIN_PARTITION, [TRAIN_TASK])
