"""Which checkpoints a run has: one folder each, `<incarnation>-<step>`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ratchet.artifacts.manifest import (
    Manifest,
    ManifestForeign,
    check_sizes,
    checkpoints_key,
    files_damaged,
    read_manifest,
)
from ratchet.artifacts.store import ArtifactStore
from ratchet.spec.faults import StorageFault


@dataclass(frozen=True, slots=True, order=True)
class CheckpointFolder:
    """A place for a checkpoint, committed or not. Its order is by (incarnation, step)."""

    incarnation: int
    step: int
    path: Path

    def manifest(self, run: str) -> Manifest:
        """Its manifest, if it was committed and its files are there with their sizes; what is in the files
        is for whoever loads them to verify.

        Raises ManifestMissing, ManifestDamaged, ManifestForeign or FilesDamaged (all CheckpointDamaged), and
        StorageFault if it cannot be read just now.
        """
        manifest = read_manifest(self.path, run)
        if (manifest.incarnation, manifest.step) != (self.incarnation, self.step):
            raise ManifestForeign(
                f"{self.path} holds checkpoint {manifest.incarnation}-{manifest.step}; rename it"
            )
        if problems := check_sizes(self.path, manifest):
            raise files_damaged(problems)
        return manifest


def checkpoint_folders(store: ArtifactStore, run: str) -> list[CheckpointFolder]:
    """Every checkpoint folder of a run, highest (incarnation, step) first. Raises StorageFault."""
    key = checkpoints_key(run)
    folders = [
        CheckpointFolder(int(name[1]), int(name[2]), store.local_folder(f"{key}/{name[0]}"))
        for name in (re.fullmatch(r"([0-9]+)-([0-9]+)", text) for text in store.list(key))
        if name
    ]
    return sorted(folders, reverse=True)


def list_manifests(store: ArtifactStore, run: str) -> tuple[list[Manifest], list[str]]:
    """The committed checkpoints of a run, highest (incarnation, step) first, and what is wrong with the
    others, one line each."""
    manifests: list[Manifest] = []
    problems: list[str] = []
    for folder in checkpoint_folders(store, run):
        try:
            manifests.append(folder.manifest(run))
        except StorageFault as fault:
            problems.append(str(fault))
    return manifests, problems


def highest_incarnation(store: ArtifactStore, run: str, folders: Iterable[CheckpointFolder]) -> int:
    """Over the run's checkpoint folders, committed or not, and its journal; 0 if there are none."""
    journal = store.list(f"runs/{run}/journal")
    known = [folder.incarnation for folder in folders]
    known += [int(name) for name in journal if name.isdecimal()]
    return max(known, default=0)
