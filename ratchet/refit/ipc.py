"""The `ipc` mover: shared memory of one host, as plain files in /dev/shm.

Not multiprocessing.shared_memory: its resource tracker unlinks segments of other processes.
"""

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from ratchet.refit.manifest import RefitManifest
from ratchet.refit.segments import SHARED_MEMORY, new_segment
from ratchet.refit.staging import plan, receive, stage
from ratchet.spec.faults import InfraFault, StorageFault
from ratchet.spec.ids import WeightVersion

MOVER = "ipc"


class ShmSender:
    """Stages weight versions in one segment, which it owns and uses again while the size stays the same.

    `prefix` names the owner, for whoever must clean up after it (see `segments.sweep`): letters, digits,
    `.`, `_` and `-`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._segment: Path | None = None
        self._mapping: mmap.mmap | None = None

    def stage(
        self, version: WeightVersion, weights: Mapping[str, torch.Tensor], wire_dtypes: Mapping[str, str]
    ) -> RefitManifest:
        """Put `weights` into shared memory, each in its wire dtype (see `Generator.wire_dtypes`).

        It overwrites the version staged before, so every receiver must have let go of that one.
        Raises InfraFault if weights and wire dtypes differ in names, StorageFault if /dev/shm is full.
        """
        layout = plan(wire_dtypes, {name: tensor.shape for name, tensor in weights.items()})
        segment, mapping = self._room(layout.num_bytes)
        digests = stage(weights, layout, memoryview(mapping))
        return RefitManifest(
            version=version, mover=MOVER, segment=segment.name, layout=layout, bucket_digests=digests
        )

    def holds(self, manifest: RefitManifest) -> bool:
        """Whether what was staged so is there still."""
        return self._segment is not None and self._segment.name == manifest.segment and self._segment.exists()

    def close(self) -> None:
        """Remove the segment. Receivers that have it mapped keep their bytes."""
        # The mapping is never closed by hand: it goes with the last tensor over it. Closed under a
        # tensor's feet, the next read is a segmentation fault.
        self._mapping = None
        if self._segment is not None:
            self._segment.unlink(missing_ok=True)
            self._segment = None

    def _room(self, num_bytes: int) -> tuple[Path, mmap.mmap]:
        if self._segment is not None and self._mapping is not None:
            if len(self._mapping) == num_bytes and self._segment.exists():  # not swept meanwhile
                return self._segment, self._mapping
        self.close()
        self._segment = new_segment(self._prefix)
        try:
            self._mapping = _create(self._segment, num_bytes)
        except BaseException:
            self.close()
            raise
        return self._segment, self._mapping


class ShmReceiver:
    """Opens what a sender staged. Keeps its mapping while the sender keeps its segment."""

    def __init__(self) -> None:
        self.fetched_bytes = 0  # it is read where it lies
        self._identity: tuple[str, int, int] | None = None
        self._mapping: mmap.mmap | None = None

    @contextmanager
    def open(self, manifest: RefitManifest) -> Iterator[dict[str, torch.Tensor]]:
        """Name -> tensor, zero-copy, verified. Copy them before the block ends: afterwards the sender may
        overwrite them. Raises InfraFault if the segment is gone or its bytes are not those staged."""
        try:
            tensors = receive(memoryview(self._map(manifest)), manifest)
        except InfraFault:
            self.close()  # a page this process wrote to is its own for ever: look afresh next time
            raise
        yield tensors

    def close(self) -> None:
        """Let go of the mapping."""
        self._mapping = None
        self._identity = None

    def _map(self, manifest: RefitManifest) -> mmap.mmap:
        path = SHARED_MEMORY / manifest.segment
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise InfraFault(f"refit of {manifest.version}: {path} is gone; stage it again") from error
        try:
            status = os.fstat(descriptor)
            if status.st_size < manifest.layout.num_bytes:  # reading past the end is SIGBUS
                raise InfraFault(
                    f"refit of {manifest.version}: {path} has {status.st_size} bytes and should have "
                    f"{manifest.layout.num_bytes}; stage it again"
                )
            identity = (manifest.segment, status.st_ino, status.st_size)
            if self._mapping is None or self._identity != identity:
                self.close()
                # A private mapping: a receiver that writes to its weights cannot spoil another's.
                self._mapping = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_COPY)
                self._identity = identity
        finally:
            os.close(descriptor)
        return self._mapping


def _create(path: Path, num_bytes: int) -> mmap.mmap:
    size = max(num_bytes, 1)  # an empty file cannot be mapped
    status = os.statvfs(path.parent)
    free = status.f_bavail * status.f_frsize
    fix = "free space there, or give it a larger size limit"
    if size > free:
        raise StorageFault(f"cannot stage weights in {path.parent}: {size} bytes needed, {free} free; {fix}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Takes the pages now: on a full tmpfs this is an error, where writing would be SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageFault(
            f"cannot stage weights in {path.parent}: {size} bytes needed: {error.strerror}; {fix}"
        ) from error
