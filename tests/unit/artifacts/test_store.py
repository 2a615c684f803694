"""The local artifact store: whole or not at all, and errors that say what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.faults import StorageFault


def test_what_is_written_is_read_back_and_listed(tmp_path: Path) -> None:
    store = LocalArtifactStore(tmp_path / "artifacts")
    store.write_atomic("runs/a/journal/2", b"two")
    store.write_atomic("runs/a/journal/1", b"one")
    store.write_atomic("runs/a/journal/1", b"uno")
    assert store.read("runs/a/journal/1") == b"uno"
    assert store.exists("runs/a/journal/2")
    assert not store.exists("runs/a/journal/3")
    assert store.list("runs/a/journal") == ["1", "2"]
    assert store.list("runs/nobody") == []
    store.remove_tree("runs/a")
    store.remove_tree("runs/a")
    assert not store.exists("runs/a/journal/1")


def test_a_failed_replacement_leaves_the_old_bytes_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalArtifactStore(tmp_path)
    store.write_atomic("key", b"old")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(StorageFault, match="writable"):
            store.write_atomic("key", b"new")
    assert store.read("key") == b"old"
    assert os.listdir(tmp_path) == ["key"]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../outside", "runs/../../outside"])
def test_keys_cannot_leave_the_root(tmp_path: Path, key: str) -> None:
    with pytest.raises(StorageFault, match="not an artifact key"):
        LocalArtifactStore(tmp_path).write_atomic(key, b"x")


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFault, match=r"cannot read .*/runs/x: no such file"):
        LocalArtifactStore(tmp_path).read("runs/x")


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(StorageFault, match="move away the file"):
        LocalArtifactStore(tmp_path).write_atomic("runs/a/key", b"x")


def test_a_disk_that_takes_no_more_is_a_storage_fault(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.faults import StorageFault
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    LocalArtifactStore(Path(sys.argv[1])).write_atomic("big", bytes(5000))
except StorageFault as fault:
    print(fault)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert str(tmp_path / "big") in done.stdout
    assert "free space" in done.stdout
    assert os.listdir(tmp_path) == []
