"""Manifests: what is committed, and what is damaged."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.manifest import (
    MANIFEST_NAME,
    ManifestDamaged,
    ManifestForeign,
    ManifestMissing,
    check_sizes,
    read_manifest,
    verify_files,
)
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.faults import (
    RESTARTABLE,
    CheckpointDamaged,
    Fault,
    FaultKind,
    StorageFault,
    as_error,
)

Damage = Callable[[Path], None]


def test_manifests_are_ordered_by_incarnation_then_step_as_numbers(store: LocalArtifactStore, commit) -> None:
    for incarnation, step in ((1, 9), (1, 10), (2, 3), (10, 1)):
        commit(incarnation, step)
    commit(99, 99, run="another")
    manifests, problems = list_manifests(store, "r")
    assert [(m.incarnation, m.step) for m in manifests] == [(10, 1), (2, 3), (1, 10), (1, 9)]
    assert problems == []


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
def test_a_damaged_file_is_named(commit, damage: Damage, named: str) -> None:
    folder = commit(1, 2)
    assert verify_files(folder, read_manifest(folder)) == []
    damage(folder)
    found = verify_files(folder, read_manifest(folder))
    assert len(found) == 1
    assert named in found[0]
    # Sizes tell all but what is inside.
    assert check_sizes(folder, read_manifest(folder)) == ([] if damage is flip else found)


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


def a_folder_for_a_manifest(folder: Path) -> None:
    (folder / MANIFEST_NAME).unlink()
    (folder / MANIFEST_NAME).mkdir()


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
        (a_folder_for_a_manifest, ManifestDamaged, "is a folder"),
    ],
)
def test_a_damaged_manifest_is_named_and_the_others_are_listed(
    store: LocalArtifactStore, commit, damage: Damage, error: type[Exception], named: str
) -> None:
    commit(1, 1)
    folder = commit(1, 2)
    damage(folder)
    with pytest.raises(error, match=named) as caught:
        read_manifest(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    manifests, problems = list_manifests(store, "r")
    assert [manifest.step for manifest in manifests] == [1]
    assert problems == ([] if damage is no_folder else [str(caught.value)])


def test_every_flipped_bit_of_a_manifest_is_seen(commit) -> None:
    path = commit(1, 2) / MANIFEST_NAME
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        path.write_bytes(bad)
        with pytest.raises((ManifestDamaged, ManifestForeign)):
            read_manifest(path.parent)


def test_a_manifest_of_another_run_or_checkpoint_is_refused(store: LocalArtifactStore, commit) -> None:
    commit(1, 1)
    shutil.copytree(commit(1, 7, run="another"), store.local_folder("runs/r/checkpoints/1-7"))
    shutil.copytree(
        store.local_folder("runs/r/checkpoints/1-1"), store.local_folder("runs/r/checkpoints/1-8")
    )
    with pytest.raises(ManifestForeign, match="belongs to run another"):
        read_manifest(store.local_folder("runs/r/checkpoints/1-7"), "r")
    manifests, problems = list_manifests(store, "r")
    assert [manifest.step for manifest in manifests] == [1]
    assert "1-8 holds checkpoint 1-1" in problems[0]
    assert "belongs to run another" in problems[1]


def test_a_manifest_of_a_newer_ratchet_asks_for_an_upgrade(commit) -> None:
    folder = commit(1, 1, schema_version=2)
    with pytest.raises(ManifestForeign, match="upgrade Ratchet"):
        read_manifest(folder)


def test_damage_is_told_apart_from_a_disk_wherever_a_fault_travels(tmp_path: Path) -> None:
    with pytest.raises(ManifestMissing) as caught:
        read_manifest(tmp_path)
    fault = Fault.model_validate_json(caught.value.fault().model_dump_json())
    assert fault.kind is FaultKind.DAMAGED
    assert isinstance(as_error(fault), CheckpointDamaged)
    assert fault.kind not in RESTARTABLE


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
def test_what_cannot_be_read_just_now_is_not_damaged(
    commit, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = commit(1, 2)
    manifest = read_manifest(folder)

    def refuse(path: Path, *_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number), str(path))

    for broken, read in (
        ("open", lambda: verify_files(folder, manifest)),
        ("is_file", lambda: check_sizes(folder, manifest)),
        ("read_bytes", lambda: read_manifest(folder)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Path, broken, refuse)
            with pytest.raises(StorageFault, match="cannot read") as caught:
                read()
        assert caught.value.kind is FaultKind.STORAGE
        assert os.strerror(number).lower() in str(caught.value)
    assert verify_files(folder, manifest) == []
