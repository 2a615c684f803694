"""The `collective` mover: the bytes are broadcast over a process group, gloo here.

Every attempt has a group of its own, named by a number that is never used again, so that what is left of one
that failed meets nobody. The sender serves attempts in a thread, one after the other; a peer that dies, or is
silent for too long, ends the attempt for both. The store through which groups are made listens without a
password, as all of torch.distributed does: for networks that are closed to others.
"""

import logging
import mmap
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

import torch
from torch import distributed as dist

from ratchet.refit.manifest import PatchInfo, RefitManifest
from ratchet.refit.rooms import KeepingReceiver, SenderRooms, part_of
from ratchet.refit.staging import check_names
from ratchet.spec import deadlines
from ratchet.spec.faults import InfraFault
from ratchet.spec.ids import WeightVersion

log = logging.getLogger(__name__)

MOVER = "collective"
LOOK_EVERY = 0.005
SENDER, RECEIVER = 0, 1
HERE, GONE = "here", "gone"


class CollectiveSender:
    """Broadcasts the version that was staged last to whoever asks for it."""

    def __init__(self, prefix: str, host: str, *, keep_two: bool = False) -> None:
        """`host`: an address of this machine that generators reach."""
        self._prefix, self._host = prefix, host
        self._rooms = SenderRooms(keep_two=keep_two)
        self._store: dist.TCPStore | None = None
        self._staged: RefitManifest | None = None
        self._parts: dict[str, list[memoryview]] = {}
        self._lock = threading.Lock()
        """Held while something is staged, or broadcast."""
        self._closed = threading.Event()

    def stage(
        self, version: WeightVersion, weights: Mapping[str, torch.Tensor], wire_dtypes: Mapping[str, str]
    ) -> RefitManifest:
        """See WeightSender. Waits for an attempt that is under way, which ends within its deadline."""
        check_names(wire_dtypes, weights)
        with self._lock:
            before, self._staged, self._parts = self._staged, None, {}
            staged = self._rooms.stage(weights, wire_dtypes)
            parts = {"full": [staged.bucket(index) for index in range(len(staged.layout.buckets))]}
            if offered := staged.delta_from(before):
                parts["patch"] = [memoryview(bytearray(patch.body)) for patch in staged.patches or ()]
            manifest = RefitManifest(
                version=version,
                mover=MOVER,
                segment=f"ratchet-{self._prefix}-{secrets.token_hex(4)}",
                url=f"tcp://{self._host}:{self._serving().port}",
                layout=staged.layout,
                bucket_digests=staged.digests,
                delta=offered,
            )
            self._parts, self._staged = parts, manifest
        return manifest

    def holds(self, manifest: RefitManifest) -> bool:
        """Whether what was staged so is there still."""
        return self._staged is not None and self._staged.segment == manifest.segment

    def close(self) -> None:
        """Serve no more."""
        self._closed.set()
        with self._lock:
            self._parts, self._staged = {}, None
            self._rooms.clear()

    def _serving(self) -> dist.TCPStore:
        if self._store is None:
            self._store = dist.TCPStore(self._host, 0, is_master=True, wait_for_workers=False)
            threading.Thread(target=self._serve, args=(self._store,), name="refit-gloo", daemon=True).start()
        return self._store

    def _serve(self, store: dist.TCPStore) -> None:
        attempt = 1
        while not self._closed.is_set():
            if not store.check([_asked(attempt)]):
                time.sleep(LOOK_EVERY)
                continue
            asked, attempt = attempt, attempt + 1
            if store.check([_withdrawn(asked)]):
                continue  # who asked has given up meanwhile, and would keep the next one waiting
            segment, _, kind = store.get(_asked(asked)).decode().partition("/")
            with self._lock:
                there = self._staged is not None and self._staged.segment == segment and kind in self._parts
                store.set(_answered(asked), HERE if there else GONE)
                if there:
                    try:
                        _broadcast(_group(store, asked, SENDER), SENDER, self._parts[kind])
                    except RuntimeError as error:  # gloo's: whoever asked has gone
                        log.warning("refit of %s was not taken: %s", segment, error)


class CollectiveReceiver(KeepingReceiver):
    """Asks a sender for a broadcast, and keeps what comes."""

    def _fetch_all(self, manifest: RefitManifest, buffer: mmap.mmap) -> None:
        buckets = range(len(manifest.layout.buckets))
        self._take(manifest, "full", [part_of(buffer, manifest.layout, index) for index in buckets])

    def _fetch_patches(self, manifest: RefitManifest, patches: Sequence[PatchInfo]) -> list[bytes]:
        bodies = [memoryview(bytearray(patch.num_bytes)) for patch in patches]
        self._take(manifest, "patch", bodies)
        return [bytes(body) for body in bodies]

    def _take(self, manifest: RefitManifest, kind: str, into: Sequence[memoryview]) -> None:
        """Fill each. Raises InfraFault."""
        where, silent = urlsplit(manifest.url), timedelta(seconds=deadlines.REFIT_SILENT)
        try:
            store = dist.TCPStore(where.hostname or "", where.port or 0, is_master=False, timeout=silent)
            attempt = store.add("attempts", 1)
            try:
                self._take_part(store, attempt, manifest, kind, into)
            except BaseException:
                store.set(_withdrawn(attempt), "")
                raise
        except RuntimeError as error:  # torch.distributed's, of every kind
            cause = " ".join(str(error).split())[:200]
            raise InfraFault(
                f"refit of {manifest.version}: {manifest.url} broke off or did not answer within "
                f"{deadlines.REFIT_SILENT:g} s: {cause}"
            ) from error
        self.fetched_bytes += sum(len(view) for view in into)

    def _take_part(
        self,
        store: dist.TCPStore,
        attempt: int,
        manifest: RefitManifest,
        kind: str,
        into: Sequence[memoryview],
    ) -> None:
        store.set(_asked(attempt), f"{manifest.segment}/{kind}")
        store.wait([_answered(attempt)], timedelta(seconds=deadlines.REFIT_SILENT))
        if store.get(_answered(attempt)).decode() != HERE:
            raise InfraFault(
                f"refit of {manifest.version}: {manifest.url} does not have it any more: stage it again"
            )
        _broadcast(_group(store, attempt, RECEIVER), SENDER, into)


def _group(store: dist.Store, attempt: int, rank: int) -> dist.ProcessGroupGloo:
    named = dist.PrefixStore(f"group/{attempt}", store)
    return dist.ProcessGroupGloo(named, rank, 2, timedelta(seconds=deadlines.REFIT_SILENT))


def _broadcast(group: dist.ProcessGroupGloo, root: int, parts: Sequence[memoryview]) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = root
    for part in parts:
        if len(part):
            tensors = [torch.frombuffer(part, dtype=torch.uint8)]
            group.broadcast(tensors, options).wait()  # pyright: ignore[reportAttributeAccessIssue]


def _asked(attempt: int) -> str:
    return f"asked/{attempt}"


def _answered(attempt: int) -> str:
    return f"answered/{attempt}"


def _withdrawn(attempt: int) -> str:
    return f"withdrawn/{attempt}"
