"""Retention: checkpoints that nobody needs any more are deleted, and none is ever half there."""

import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ratchet.artifacts.checkpoints import CheckpointFolder, checkpoint_folders, highest_incarnation
from ratchet.artifacts.durable import fsync, remove, storage_faults
from ratchet.artifacts.manifest import (
    MANIFEST_NAME,
    FilesDamaged,
    ManifestDamaged,
    ManifestMissing,
    checkpoints_key,
)
from ratchet.artifacts.pins import pinned_by
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.control import RetainAnswer, RetainRequest
from ratchet.spec.faults import StorageFault
from ratchet.spec.home import Home

_REMOVED = ".removed"

_log = logging.getLogger(__name__)


def retain(home: Home, request: RetainRequest, scores: Mapping[tuple[int, int], float]) -> RetainAnswer:
    """Delete the checkpoints of a run that `checkpointing` of its spec does not keep.

    `scores` are held-out values of the metric `checkpointing.keep_best`, by (incarnation, step). What is in
    use or pinned stays, and so does what is not ours: another run's, a file. A damaged checkpoint goes by
    its age like any other, but does not count as one that is kept. A half-written one goes once nobody can
    be writing it. Killed anywhere, a call leaves checkpoints whole or invisible, and the next one finishes
    its work. Raises StorageFault; what was deleted before that stays deleted.
    """
    store = LocalArtifactStore(home.artifacts)
    place = store.local_folder(checkpoints_key(request.run))
    with storage_faults(place, "delete checkpoints in"):
        for hidden in sorted(place.glob(f".*{_REMOVED}")):
            _finish(hidden)  # left by a call that was killed
        deleted: list[str] = []
        num_bytes = 0
        for folder in _superfluous(store, request, scores):
            if pinned_by(folder.path):
                continue
            hidden = _hide(folder.path)
            size = _size(hidden)
            if _finish(hidden):
                deleted.append(str(folder.path))
                num_bytes += size
                _log.info("checkpoint deleted: %s (%d bytes)", folder.path, size)
    return RetainAnswer(deleted=tuple(deleted), num_bytes=num_bytes)


def _superfluous(
    store: LocalArtifactStore, request: RetainRequest, scores: Mapping[tuple[int, int], float]
) -> Iterator[CheckpointFolder]:
    """What the policy does not keep, oldest first; pins aside."""
    policy = request.spec.checkpointing
    folders = checkpoint_folders(store, request.run)
    highest = highest_incarnation(store, request.run, folders)
    whole: list[CheckpointFolder] = []
    kept: set[CheckpointFolder] = set()
    steps: set[int] = set()
    for folder in folders:
        try:
            folder.manifest(request.run)
        except ManifestMissing:
            # Checkpoints are written one after the other: once a newer one is there, this one is given up.
            if folder.incarnation == highest and not whole:
                kept.add(folder)
        except (ManifestDamaged, FilesDamaged):
            if len(whole) < policy.keep_last or not folder.path.is_dir():
                kept.add(folder)
        except StorageFault:  # another run's, a newer Ratchet's, or unreadable
            kept.add(folder)
        else:
            # Of the checkpoints of one step, the newest is the one on the run's path.
            nth = policy.keep_every and folder.step % policy.keep_every == 0 and folder.step not in steps
            if len(whole) < policy.keep_last or nth:
                kept.add(folder)
            whole.append(folder)
            steps.add(folder.step)
    if policy.keep_best != "none":
        scored = {folder: scores.get((folder.incarnation, folder.step), math.nan) for folder in whole}
        rated = [folder for folder in whole if not math.isnan(scored[folder])]
        kept |= set(sorted(rated, key=lambda folder: (scored[folder], folder))[-1:])
    for folder in reversed(folders):
        if folder not in kept and str(folder.path) not in request.in_use:
            yield folder


def _hide(folder: Path) -> Path:
    """Take a checkpoint out of sight, as one step: whole, under another name."""
    hidden = folder.with_name(f".{folder.name}{_REMOVED}")
    os.rename(folder, hidden)
    fsync(folder.parent)
    return hidden


def _finish(hidden: Path) -> bool:
    """Remove a hidden checkpoint, or bring it back if it was pinned at the last moment."""
    folder = hidden.with_name(hidden.name.removeprefix(".").removesuffix(_REMOVED))
    if (hidden / MANIFEST_NAME).exists() and pinned_by(folder):
        os.rename(hidden, folder)
        fsync(folder.parent)
        return False
    remove(hidden / MANIFEST_NAME)  # first: from here on it never comes back
    remove(hidden)
    return True


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
