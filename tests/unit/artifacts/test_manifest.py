"""Manifests: what is committed, what is damaged, and which checkpoint is the newest good one."""

import logging
import shutil
from pathlib import Path

import pytest

from ratchet.artifacts.durable import sha256_file
from ratchet.artifacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    ManifestDamaged,
    ManifestForeign,
    ManifestMissing,
    commit_manifest,
    list_manifests,
    newest_manifest,
    read_manifest,
    verify_files,
)
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.faults import Fault, FaultKind
from ratchet.spec.ids import WeightVersion


def commit(store: LocalArtifactStore, incarnation: int, step: int, run: str = "r", **fields: object) -> Path:
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


@pytest.fixture
def store(tmp_path: Path) -> LocalArtifactStore:
    return LocalArtifactStore(tmp_path)


def test_manifests_are_ordered_by_incarnation_then_step_as_numbers(store: LocalArtifactStore) -> None:
    for incarnation, step in ((1, 9), (1, 10), (2, 3), (10, 1)):
        commit(store, incarnation, step)
    commit(store, 99, 99, run="another")
    manifests, problems = list_manifests(store, "r")
    assert [(m.incarnation, m.step) for m in manifests] == [(10, 1), (2, 3), (1, 10), (1, 9)]
    assert problems == []
    newest, problems = newest_manifest(store, "r")
    assert newest is not None
    assert newest.key == "runs/r/checkpoints/10-1"
    assert problems == []


def test_a_run_without_checkpoints_has_no_newest(store: LocalArtifactStore) -> None:
    assert newest_manifest(store, "r") == (None, [])


def truncate(folder: Path) -> None:
    (folder / "state/a.bin").write_bytes((folder / "state/a.bin").read_bytes()[:-1])


def flip(folder: Path) -> None:
    data = bytearray((folder / "state/a.bin").read_bytes())
    data[7] ^= 1
    (folder / "state/a.bin").write_bytes(data)


def delete_file(folder: Path) -> None:
    (folder / "state/b.bin").unlink()


def folder_in_the_place_of_a_file(folder: Path) -> None:
    (folder / "state/b.bin").unlink()
    (folder / "state/b.bin").mkdir()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (truncate, "state/a.bin has"),
        (flip, "state/a.bin is damaged"),
        (delete_file, "state/b.bin is missing"),
        (folder_in_the_place_of_a_file, "state/b.bin is missing"),
    ],
)
def test_a_damaged_file_is_named_and_the_older_checkpoint_is_used(
    store: LocalArtifactStore, caplog: pytest.LogCaptureFixture, damage: object, named: str
) -> None:
    commit(store, 1, 1)
    folder = commit(store, 1, 2)
    damage(folder)  # type: ignore[operator]
    found = verify_files(folder, read_manifest(folder))
    assert len(found) == 1
    assert named in found[0]
    with caplog.at_level(logging.WARNING):
        newest, problems = newest_manifest(store, "r")
    assert newest is not None
    assert newest.step == 1
    assert problems == found
    assert found[0] in caplog.text


def no_manifest(folder: Path) -> None:
    (folder / MANIFEST_NAME).unlink()


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def empty_manifest(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(b"")


def half_a_manifest(folder: Path) -> None:
    text = (folder / MANIFEST_NAME).read_bytes()
    (folder / MANIFEST_NAME).write_bytes(text[: len(text) // 2])


def not_a_manifest(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_text('["something", "else"]')


def not_text(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(b"\xff\xfe\x00")


def another_cursor(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text().replace('"cursor": 8', '"cursor": 9'))


def a_key_less(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text().replace('"cursor": 8,', ""))


def a_file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        (no_manifest, ManifestMissing, "no manifest.json"),
        (no_folder, ManifestMissing, "no manifest.json"),
        (empty_manifest, ManifestDamaged, "is empty"),
        (half_a_manifest, ManifestDamaged, "is not the JSON"),
        (not_a_manifest, ManifestDamaged, "is not the JSON"),
        (not_text, ManifestDamaged, "is not the JSON"),
        (another_cursor, ManifestDamaged, "its own sha256"),
        (a_key_less, ManifestDamaged, "damaged at cursor"),
        (a_file_in_its_place, ManifestDamaged, "is a file"),
    ],
)
def test_a_damaged_manifest_is_named_and_the_older_checkpoint_is_used(
    store: LocalArtifactStore, damage: object, error: type[Exception], named: str
) -> None:
    commit(store, 1, 1)
    folder = commit(store, 1, 2)
    damage(folder)  # type: ignore[operator]
    with pytest.raises(error, match=named) as caught:
        read_manifest(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    newest, problems = newest_manifest(store, "r")
    assert newest is not None
    assert newest.step == 1
    assert len(problems) == (0 if damage is no_folder else 1)


def test_every_flipped_bit_of_a_manifest_is_seen(store: LocalArtifactStore) -> None:
    path = commit(store, 1, 2) / MANIFEST_NAME
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        path.write_bytes(bad)
        with pytest.raises((ManifestDamaged, ManifestForeign)):
            read_manifest(path.parent)


def test_a_manifest_of_another_run_or_checkpoint_is_refused(store: LocalArtifactStore) -> None:
    commit(store, 1, 1)
    shutil.copytree(commit(store, 1, 7, run="another"), store.local_folder("runs/r/checkpoints/1-7"))
    shutil.copytree(
        store.local_folder("runs/r/checkpoints/1-1"), store.local_folder("runs/r/checkpoints/1-8")
    )
    with pytest.raises(ManifestForeign, match="belongs to run another"):
        read_manifest(store.local_folder("runs/r/checkpoints/1-7"), "r")
    newest, problems = newest_manifest(store, "r")
    assert newest is not None
    assert newest.step == 1
    assert len(problems) == 2


def test_a_manifest_of_a_newer_ratchet_asks_for_an_upgrade(store: LocalArtifactStore) -> None:
    folder = commit(store, 1, 1, schema_version=2)
    with pytest.raises(ManifestForeign, match="upgrade Ratchet"):
        read_manifest(folder)


def test_faults_travel_as_storage_faults(tmp_path: Path) -> None:
    with pytest.raises(ManifestMissing) as caught:
        read_manifest(tmp_path)
    fault: Fault = caught.value.fault()
    assert fault.kind is FaultKind.STORAGE
