"""The `store` mover: versions in the artifact store, whole ones and patches between them.

A version is a folder: `bytes` or `patches`, and then `manifest.json`, which makes it one. Whoever has the
base of its patches reads those; anybody else goes back to the newest whole version, and forward from there.
So a generator that has just been made can start from the folder alone (`newest`).
"""

import mmap
import secrets
from collections.abc import Mapping, Sequence

import torch

from ratchet.artifacts.store import ArtifactStore
from ratchet.refit import delta
from ratchet.refit.manifest import Delta, PatchInfo, RefitManifest
from ratchet.refit.rooms import KeepingReceiver, SenderRooms
from ratchet.spec.faults import InfraFault, StorageFault
from ratchet.spec.ids import WeightVersion

MOVER = "store"
BYTES, PATCHES, MANIFEST = "bytes", "patches", "manifest.json"
WHOLE_KEPT = 2
"""Whole versions that stay, with the patches after them: a receiver may be on its way along the older one."""


class StoreSender:
    """Keeps versions below one key of the store, which nobody else writes to."""

    def __init__(
        self, store: ArtifactStore, key: str, prefix: str, *, keep_two: bool, full_every: int
    ) -> None:
        """`keep_two`: write patches where there is a version before."""
        self._store, self._key, self._prefix = store, key, prefix
        self._rooms = SenderRooms(keep_two=keep_two)
        self._full_every = full_every
        self._staged: RefitManifest | None = None
        self._since_whole = 0
        self._number = next_number(store.list(key))
        self._whole = [name for name in store.list(key) if store.exists(f"{key}/{name}/{BYTES}")]

    def stage(
        self, version: WeightVersion, weights: Mapping[str, torch.Tensor], wire_dtypes: Mapping[str, str]
    ) -> RefitManifest:
        """See WeightSender. Nothing that a receiver reads is overwritten."""
        before, self._staged = self._staged, None
        staged = self._rooms.stage(weights, wire_dtypes)
        offered = None
        if staged.patches is not None and before is not None and self._since_whole + 1 < self._full_every:
            infos = tuple(patch.info for patch in staged.patches)
            offered = Delta(base=before.digest, base_segment=before.segment, patches=infos)
        manifest = RefitManifest(
            version=version,
            mover=MOVER,
            segment=f"ratchet-{self._prefix}-{self._number:08d}-{secrets.token_hex(4)}",
            layout=staged.layout,
            bucket_digests=staged.digests,
            delta=offered,
        )
        self._number += 1
        folder = f"{self._key}/{manifest.segment}"
        if offered is None:
            self._store.write_atomic(f"{folder}/{BYTES}", memoryview(staged.room)[: staged.layout.num_bytes])
            self._since_whole = 0
        else:
            assert staged.patches is not None
            self._store.write_atomic(f"{folder}/{PATCHES}", b"".join(patch.body for patch in staged.patches))
            self._since_whole += 1
        self._store.write_atomic(f"{folder}/{MANIFEST}", manifest.model_dump_json().encode())
        if offered is None:
            self._whole.append(manifest.segment)
            self._forget()
        self._staged = manifest
        return manifest

    def holds(self, manifest: RefitManifest) -> bool:
        """Whether what was staged so is there still."""
        return self._store.exists(f"{self._key}/{manifest.segment}/{MANIFEST}")

    def close(self) -> None:
        """What is in the store stays."""
        self._rooms.clear()
        self._staged = None

    def _forget(self) -> None:
        """Remove what came before the whole versions that stay."""
        self._whole = self._whole[-WHOLE_KEPT:]
        for name in self._store.list(self._key):
            if _number(name) < _number(self._whole[0]):
                self._store.remove_tree(f"{self._key}/{name}")


class StoreReceiver(KeepingReceiver):
    """Reads versions out of the store."""

    def __init__(self, store: ArtifactStore, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key

    def _fetch_all(self, manifest: RefitManifest, buffer: mmap.mmap) -> None:
        chain = [manifest]
        while chain[-1].delta is not None:
            chain.append(self._manifest(chain[-1].delta.base_segment))
        whole = self._read(chain[-1], BYTES)
        if len(whole) != manifest.layout.num_bytes:
            raise InfraFault(
                f"refit of {manifest.version}: {self._key}/{chain[-1].segment} has {len(whole)} bytes and "
                f"should have {manifest.layout.num_bytes}: stage it again"
            )
        buffer[: len(whole)] = whole
        self.fetched_bytes += len(whole)
        for link in reversed(chain[:-1]):
            assert link.delta is not None
            patches = self._patches(link, link.delta.patches)
            delta.apply(memoryview(buffer), link.layout, patches, link.bucket_digests)

    def _fetch_patches(self, manifest: RefitManifest, patches: Sequence[PatchInfo]) -> list[bytes]:
        together = self._read(manifest, PATCHES)
        self.fetched_bytes += len(together)
        bodies: list[bytes] = []
        start = 0
        for patch in patches:
            bodies.append(together[start : start + patch.num_bytes])
            start += patch.num_bytes
        return bodies

    def _manifest(self, segment: str) -> RefitManifest:
        return RefitManifest.model_validate_json(self._read_key(f"{segment}/{MANIFEST}"))

    def _read(self, manifest: RefitManifest, name: str) -> bytes:
        return self._read_key(f"{manifest.segment}/{name}")

    def _read_key(self, name: str) -> bytes:
        try:
            return self._store.read(f"{self._key}/{name}")
        except StorageFault as error:
            raise InfraFault(f"weights cannot be read: {error}: stage them again") from error


def newest(store: ArtifactStore, key: str) -> RefitManifest | None:
    """The newest version below `key` that is complete; None if there is none."""
    for name in sorted(store.list(key), key=_number, reverse=True):
        if store.exists(f"{key}/{name}/{MANIFEST}"):
            return RefitManifest.model_validate_json(store.read(f"{key}/{name}/{MANIFEST}"))
    return None


def next_number(names: Sequence[str]) -> int:
    return max((_number(name) for name in names), default=-1) + 1


def _number(segment: str) -> int:
    """Of the version that it is of, in the order in which they were staged."""
    return int(segment.rsplit("-", 2)[1])
