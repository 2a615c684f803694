"""What a mover can do: carry staged bytes from the trainer to generators. Engine classes, no Ray in them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from ratchet.refit.manifest import RefitManifest
from ratchet.spec.ids import WeightVersion


class WeightSender(Protocol):
    """The trainer's end."""

    def stage(
        self, version: WeightVersion, weights: Mapping[str, torch.Tensor], wire_dtypes: Mapping[str, str]
    ) -> RefitManifest:
        """Make `weights` available in their wire dtypes. The version staged before is overwritten, so
        every receiver must have left its block. Raises InfraFault, StorageFault."""
        ...

    def holds(self, manifest: RefitManifest) -> bool:
        """Whether what was staged so is there still."""
        ...

    def close(self) -> None:
        """Give back what staging took."""
        ...


class WeightReceiver(Protocol):
    """A generator's end."""

    fetched_bytes: int
    """Of the manifest that was opened last: what had to travel for it."""

    def open(self, manifest: RefitManifest) -> AbstractContextManager[Mapping[str, torch.Tensor]]:
        """The tensors of the manifest, verified, for as long as the block lasts. Raises InfraFault."""
        ...

    def close(self) -> None:
        """Give back what opening took."""
        ...
