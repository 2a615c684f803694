"""Where a run can go back to."""

import logging
from collections.abc import Collection

from ratchet.artifacts.checkpoints import checkpoint_folders, highest_incarnation
from ratchet.artifacts.manifest import ManifestMissing, checkpoints_key
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.control import RestorePoint
from ratchet.spec.faults import CheckpointDamaged
from ratchet.spec.home import Home
from ratchet.spec.state import CheckpointRef

_log = logging.getLogger(__name__)


def restore_point(home: Home, run: str, avoid: Collection[str] = ()) -> RestorePoint:
    """The newest committed checkpoint of `run` that is not in `avoid` (folders found damaged before).

    The newest has the highest (incarnation, step), in that order. Whatever a later incarnation committed,
    it committed on top of what it restored, so its highest step is the head, and a higher step of an older
    incarnation is a branch that the run has left. While it has committed nothing, it has added nothing
    that could be restored, and the newest of the incarnation before it is still the furthest: a whole
    state, whose own steps led to it.

    A candidate is checked without reading its files (manifest intact, every file there with its size); the
    load verifies every byte, and what it finds comes back in `avoid`. Every newer checkpoint that cannot
    be used is named in `passed_over` and in the log.

    Raises StorageFault if artifacts cannot be read just now, and CheckpointDamaged if the run has committed
    checkpoints and none of them can be used: it does not begin again from its base model behind anybody's
    back.
    """
    store = LocalArtifactStore(home.artifacts)
    folders = checkpoint_folders(store, run)
    chosen = None
    unusable: list[str] = []
    passed_over: list[str] = []
    for folder in folders:
        if str(folder.path) in avoid:
            unusable.append(f"{folder.path} was found damaged when it was loaded")
            passed_over.append(unusable[-1])
            continue
        try:
            chosen = folder.manifest(run)
            break
        except ManifestMissing as fault:  # never committed
            passed_over.append(str(fault))
        except CheckpointDamaged as fault:
            unusable.append(str(fault))
            passed_over.append(unusable[-1])
    for line in passed_over:
        _log.warning("checkpoint passed over: %s", line)
    if unusable and chosen is None:
        place = store.local_folder(checkpoints_key(run))
        raise CheckpointDamaged(
            f"every checkpoint is unusable: {'; '.join(unusable)}; bring one back, or move {place} away to "
            "train from the start"
        )
    return RestorePoint(
        checkpoint=chosen
        and CheckpointRef(
            path=str(store.local_folder(chosen.key)),
            digest=chosen.state_digest,
            version=chosen.version,
            cursor=chosen.cursor,
        ),
        step=chosen.step if chosen else 0,
        highest_incarnation=highest_incarnation(store, run, folders),
        passed_over=tuple(passed_over),
    )
