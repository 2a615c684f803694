"""Where a run goes back to: its newest usable checkpoint, and an incarnation that was never used."""

import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.artifacts.restore_points import restore_point
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.control import RestorePoint
from ratchet.spec.faults import CheckpointDamaged, StorageFault
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.state import CheckpointRef


def place(point: RestorePoint) -> str | None:
    return point.checkpoint and point.checkpoint.path.rpartition("/")[2]


def test_a_run_without_checkpoints_starts_from_the_base_model(home: Home) -> None:
    assert restore_point(home, "r") == RestorePoint(checkpoint=None, step=0, highest_incarnation=0)
    assert not home.artifacts.exists()


def test_the_point_says_everything_a_restore_needs(home: Home, commit) -> None:
    folder = commit(1, 20)
    commit(7, 90, run="another")
    assert restore_point(home, "r") == RestorePoint(
        checkpoint=CheckpointRef(
            path=str(folder),
            digest="1" * 64,
            version=WeightVersion(incarnation=1, step=20, digest="0" * 32),
            cursor=80,
        ),
        step=20,
        highest_incarnation=1,
    )


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        ([(1, 9), (1, 10)], "1-10"),
        # Incarnation 2 went back to step 4, committed nothing, and died: 1-6 is still the furthest.
        ([(1, 4), (1, 6)], "1-6"),
        # Incarnation 2 went back to step 4 and committed step 5: 1-6 is a branch that the run has left.
        ([(1, 4), (1, 6), (2, 5)], "2-5"),
        ([(9, 3), (10, 2)], "10-2"),
    ],
)
def test_the_newest_is_the_furthest_on_the_runs_path(
    home: Home, commit, committed: list[tuple[int, int]], expected: str
) -> None:
    for incarnation, step in committed:
        commit(incarnation, step)
    assert place(restore_point(home, "r")) == expected


def test_incarnations_count_whether_they_committed_or_not(
    home: Home, store: LocalArtifactStore, commit, begin
) -> None:
    commit(1, 4)
    begin(3, 6)
    assert restore_point(home, "r").highest_incarnation == 3
    store.local_folder("runs/r/journal/12").mkdir(parents=True)
    store.local_folder("runs/r/journal/notes").mkdir()
    point = restore_point(home, "r")
    assert point.highest_incarnation == 12
    assert place(point) == "1-4"


def test_what_cannot_be_used_is_passed_over_by_name(
    home: Home, store: LocalArtifactStore, commit, begin, caplog: pytest.LogCaptureFixture
) -> None:
    older_and_broken = commit(1, 2)
    (older_and_broken / "manifest.json").write_bytes(b"")
    commit(1, 4)
    known = commit(1, 6)
    (commit(1, 8) / "state/b.bin").unlink()
    (commit(1, 10) / "state/a.bin").write_bytes(b"short")
    (commit(2, 6) / "manifest.json").write_bytes(b"")
    shutil.copytree(commit(2, 8, run="another"), store.local_folder("runs/r/checkpoints/2-8"))
    begin(2, 10)
    store.local_folder("runs/r/checkpoints/2-12").write_text("in the way")
    store.local_folder("runs/r/checkpoints/notes").mkdir()

    with caplog.at_level(logging.WARNING):
        point = restore_point(home, "r", avoid=[str(known)])
    assert place(point) == "1-4"
    causes = [
        "2-12 is a file where a checkpoint folder should be",
        "2-10: no checkpoint was committed there",
        "2-8/manifest.json belongs to run another",
        "2-6/manifest.json is empty",
        "1-10/state/a.bin has 5 bytes and should have",
        "1-8/state/b.bin is missing",
        "1-6 was found damaged when it was loaded",
    ]
    assert len(point.passed_over) == len(causes)
    for line, cause in zip(point.passed_over, causes, strict=True):
        assert cause in line
        assert line in caplog.text
    assert "1-2" not in caplog.text


def test_a_run_whose_every_checkpoint_is_damaged_does_not_begin_again_in_silence(home: Home, commit) -> None:
    older, newer = commit(1, 2), commit(4, 6)
    (older / "state/a.bin").unlink()
    with pytest.raises(CheckpointDamaged, match="every checkpoint is unusable") as caught:
        restore_point(home, "r", avoid={str(newer)})
    for named in (f"{newer} was found damaged", "1-2/state/a.bin is missing", "away to train from the start"):
        assert named in str(caught.value)


def test_a_run_that_has_only_half_a_checkpoint_starts_from_the_base_model(home: Home, begin) -> None:
    begin(4, 6)
    point = restore_point(home, "r")
    assert (point.checkpoint, point.step, point.highest_incarnation) == (None, 0, 4)
    assert len(point.passed_over) == 1


def test_a_checkpoint_that_cannot_be_read_just_now_is_not_passed_over(
    home: Home, commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(1, 2)
    newest = commit(1, 4)

    def stale(path: Path) -> bytes:
        if path.parent == newest:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return path.open("rb").read()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", stale)
        with pytest.raises(StorageFault, match=r"1-4/manifest\.json: stale file handle") as caught:
            restore_point(home, "r")
    assert not isinstance(caught.value, CheckpointDamaged)
    assert place(restore_point(home, "r")) == "1-4"


def test_it_needs_neither_torch_nor_arrow() -> None:
    code = (
        "import sys, ratchet.artifacts.restore_points, ratchet.artifacts.retention, ratchet.artifacts.pins\n"
        "print(sorted({'torch', 'pyarrow', 'numpy', 'ray'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
