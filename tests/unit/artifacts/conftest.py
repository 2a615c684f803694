"""Checkpoints of two small files, as far as the artifacts know them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.artifacts.durable import sha256_file
from ratchet.artifacts.manifest import FileEntry, Manifest, commit_manifest
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion

Commit = Callable[..., Path]


@pytest.fixture
def store(home: Home) -> LocalArtifactStore:
    return LocalArtifactStore(home.artifacts)


@pytest.fixture
def commit(store: LocalArtifactStore) -> Commit:
    """Commit a checkpoint and give its folder; keyword arguments replace fields of its manifest."""

    def commit_(incarnation: int, step: int, run: str = "r", **fields: object) -> Path:
        folder = store.local_folder(f"runs/{run}/checkpoints/{incarnation}-{step}")
        (folder / "state").mkdir(parents=True)
        files: list[FileEntry] = []
        for name in ("state/a.bin", "state/b.bin"):
            (folder / name).write_bytes(f"{name} of {incarnation}-{step}".encode() * 20)
            size = (folder / name).stat().st_size
            files.append(FileEntry(path=name, size=size, sha256=sha256_file(folder / name)))
        manifest = Manifest(
            run=run,
            incarnation=incarnation,
            step=step,
            cursor=step * 4,
            version=WeightVersion(incarnation=incarnation, step=step, digest="0" * 32),
            state_digest="1" * 64,
            base_model="base",
            spec_digest="spec",
            created_at=1.5,
            files=tuple(files),
        )
        commit_manifest(folder, manifest.model_copy(update=fields))
        return folder

    return commit_


@pytest.fixture
def begin(store: LocalArtifactStore) -> Commit:
    """Write half a checkpoint: files, but no manifest."""

    def begin_(incarnation: int, step: int, run: str = "r") -> Path:
        folder = store.local_folder(f"runs/{run}/checkpoints/{incarnation}-{step}")
        (folder / "state").mkdir(parents=True)
        (folder / "state/a.bin").write_bytes(b"half of it")
        return folder

    return begin_
