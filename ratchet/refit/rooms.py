"""The bytes of versions in a process's own memory: what a sender staged, and what a receiver fetched."""

import logging
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ratchet.refit import delta
from ratchet.refit.manifest import Delta, Layout, PatchInfo, RefitManifest
from ratchet.refit.staging import plan, receive, stage
from ratchet.spec.faults import InfraFault, StorageFault

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Staged:
    layout: Layout
    digests: tuple[str, ...]
    room: mmap.mmap
    patches: list[delta.Patch] | None
    """From the version staged before; None: it is not kept, or is of another layout."""

    def bucket(self, index: int) -> memoryview:
        return part_of(self.room, self.layout, index)

    def delta_from(self, before: RefitManifest | None) -> Delta | None:
        """What its manifest says of the patches; None: there are none, or nobody has what they are from."""
        if self.patches is None or before is None:
            return None
        return Delta(base=before.digest, patches=tuple(patch.info for patch in self.patches))


class SenderRooms:
    """Where versions are staged: one room, or two in turns, so that the version before is still there."""

    def __init__(self, *, keep_two: bool) -> None:
        self._keep_two = keep_two
        self._layout: Layout | None = None
        self._current: mmap.mmap | None = None
        self._spare: mmap.mmap | None = None

    def stage(self, weights: Mapping[str, torch.Tensor], wire_dtypes: Mapping[str, str]) -> Staged:
        """Cast and copy `weights` in. Raises InfraFault and StorageFault, with the version before gone or
        intact."""
        layout = plan(wire_dtypes, {name: tensor.shape for name, tensor in weights.items()})
        if self._layout != layout:
            self.clear()
        before = self._current if self._keep_two else None
        room = self._spare if self._keep_two else self._current
        if room is None:
            room = new_room(layout.num_bytes)
        self._layout = None  # a failure on the way leaves nothing to compare with
        digests = stage(weights, layout, memoryview(room))
        patches = None
        if before is not None:
            patches = list(delta.encode(memoryview(before), memoryview(room), layout))
        self._layout, self._current, self._spare = layout, room, before
        return Staged(layout, digests, room, patches)

    def clear(self) -> None:
        self._layout = self._current = self._spare = None


class KeepingReceiver(ABC):
    """A receiver that keeps the bytes of its version, and can take patches to the next."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._buffer: mmap.mmap | None = None
        self._holds: str | None = None
        """`digest` of the manifest whose bytes the buffer has."""
        self.fetched_bytes = 0
        """Of the last manifest that was opened."""

    @contextmanager
    def open(self, manifest: RefitManifest) -> Iterator[dict[str, torch.Tensor]]:
        """See WeightReceiver. The tensors are of the next version after the next call."""
        buffer = self._room(manifest.layout)
        self.fetched_bytes = 0
        if self._holds != manifest.digest and not self._patched(manifest, buffer):
            self._holds = None
            self._fetch_all(manifest, buffer)
        try:
            tensors = receive(memoryview(buffer), manifest)
        except InfraFault:
            self._holds = None
            raise
        self._holds = manifest.digest
        yield tensors

    def close(self) -> None:
        """Keep nothing."""
        self._layout = self._buffer = self._holds = None

    @abstractmethod
    def _fetch_all(self, manifest: RefitManifest, buffer: mmap.mmap) -> None:
        """Fill `buffer` with the version's bytes, and count what was fetched. Raises InfraFault."""

    @abstractmethod
    def _fetch_patches(self, manifest: RefitManifest, patches: Sequence[PatchInfo]) -> list[bytes]:
        """Their bodies, in order; count them. Raises InfraFault."""

    def _room(self, layout: Layout) -> mmap.mmap:
        if self._buffer is None or self._layout != layout:
            self.close()
            self._buffer, self._layout = new_room(layout.num_bytes), layout
        return self._buffer

    def _patched(self, manifest: RefitManifest, buffer: mmap.mmap) -> bool:
        """Whether patches made it the new version. If they did not, it is of none."""
        offered = manifest.delta
        if offered is None or self._holds != offered.base:
            return False
        patches = self._patches(manifest, offered.patches)
        self._holds = None
        try:
            delta.apply(memoryview(buffer), manifest.layout, patches, manifest.bucket_digests)
        except InfraFault as error:
            log.warning("refit of %s: %s; fetching all of it", manifest.version, error)
            return False
        return True

    def _patches(self, manifest: RefitManifest, infos: Sequence[PatchInfo]) -> list[delta.Patch]:
        bodies = self._fetch_patches(manifest, infos)
        return [
            delta.Patch(index, body, info.checksum, info.changed)
            for index, (body, info) in enumerate(zip(bodies, infos, strict=True))
        ]


def new_room(num_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, max(num_bytes, 1))
    except OSError as error:
        raise StorageFault(f"no memory for {num_bytes} bytes of weights: {error.strerror}") from error


def part_of(room: mmap.mmap, layout: Layout, bucket: int) -> memoryview:
    start, num_bytes = layout.buckets[bucket].offset, layout.buckets[bucket].num_bytes
    return memoryview(room)[start : start + num_bytes]
