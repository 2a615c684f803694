"""Pins: another run grew from a checkpoint, so retention must leave it alone.

`runs/<run>/pins/<incarnation>-<step>/<other run>` pins `runs/<run>/checkpoints/<incarnation>-<step>`: beside
the checkpoint, which is never written to once it is committed.
"""

from pathlib import Path

from ratchet.artifacts.durable import make_folder, remove, storage_faults, write_atomic
from ratchet.artifacts.manifest import read_manifest


def pin(checkpoint: Path, run: str) -> None:
    """Keep the checkpoint folder `checkpoint` for `run`, until `unpin`. Again: no effect.

    Raises ManifestMissing, and pins nothing, if there is no checkpoint (any more).
    """
    path = _folder(checkpoint) / run
    with storage_faults(path, "pin a checkpoint with"):
        make_folder(path.parent)
        write_atomic(path, b"")
    try:
        read_manifest(checkpoint)  # after the pin: from here on retention sees it
    except BaseException:
        unpin(checkpoint, run)
        raise


def unpin(checkpoint: Path, run: str) -> None:
    """`run` needs the checkpoint no longer. No pin there is no error."""
    path = _folder(checkpoint) / run
    with storage_faults(path, "remove"):
        remove(path)


def pinned_by(checkpoint: Path) -> list[str]:
    """The runs that need the checkpoint, sorted."""
    folder = _folder(checkpoint)
    with storage_faults(folder, "list"):
        if not folder.is_dir():
            return []
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def _folder(checkpoint: Path) -> Path:
    return checkpoint.parent.parent / "pins" / checkpoint.name
