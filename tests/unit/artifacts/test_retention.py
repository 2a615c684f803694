"""Retention: the policy's choice, nothing that somebody needs, and never half a checkpoint."""

import errno
import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.artifacts import retention
from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.manifest import ManifestMissing, verify_files
from ratchet.artifacts.pins import pin, pinned_by, unpin
from ratchet.artifacts.retention import retain
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.control import RetainAnswer, RetainRequest
from ratchet.spec.home import Home
from ratchet.spec.run_spec import EnvironmentSpec, GenerationSpec, GrpoSpec, PolicySpec, RunSpec

Scores = dict[tuple[int, int], float]


def request(in_use: tuple[str, ...] = (), **policy: Any) -> RetainRequest:
    spec = RunSpec(
        name="unit",
        policy=PolicySpec(model="tiny"),
        generation=GenerationSpec(max_new_tokens=5),
        grpo=GrpoSpec(num_prompts_per_step=4, num_generations_per_prompt=8, max_num_steps=4),
        environment=EnvironmentSpec(name="arithmetic"),
    )
    return RetainRequest(
        run="r",
        spec=RunSpec.model_validate({**spec.model_dump(), "checkpointing": policy}),
        in_use=in_use,
    )


def names(folder: Path) -> set[str]:
    """Of everything below the checkpoints of a run, hidden or not."""
    return set(os.listdir(folder / "checkpoints"))


@pytest.mark.parametrize(
    ("committed", "policy", "scores", "kept"),
    [
        ("1-2 1-4 1-6 1-8", {}, {}, "1-4 1-6 1-8"),
        ("1-2 1-4", {"keep_last": 3}, {}, "1-2 1-4"),
        ("1-8 1-10 2-9", {"keep_last": 2}, {}, "1-10 2-9"),
        ("1-2 1-4 1-6 1-8 1-9", {"keep_last": 1, "keep_every": 4}, {}, "1-4 1-8 1-9"),
        # Trained twice: the newer one is on the path.
        ("1-2 1-4 2-4 2-5", {"keep_last": 1, "keep_every": 4}, {}, "2-4 2-5"),
        (
            "1-2 1-4 1-6 1-8",
            {"keep_last": 1, "keep_best": "accuracy"},
            {(1, 2): 0.5, (1, 4): 0.7, (1, 6): math.nan, (1, 0): 0.9},
            "1-4 1-8",
        ),
        ("1-2 1-4 1-6", {"keep_last": 1, "keep_best": "accuracy"}, {(1, 2): 0.7, (1, 4): 0.7}, "1-4 1-6"),
        ("1-2 1-4 1-6", {"keep_last": 1, "keep_best": "accuracy"}, {}, "1-6"),
        ("1-2 1-4 1-6", {"keep_last": 1}, {(1, 2): 0.7}, "1-6"),
        ("", {}, {}, ""),
    ],
)
def test_the_policy_decides(
    home: Home,
    store: LocalArtifactStore,
    commit,
    committed: str,
    policy: dict[str, Any],
    scores: Scores,
    kept: str,
) -> None:
    folders = {name: commit(*map(int, name.split("-"))) for name in committed.split()}
    num_bytes = {
        name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        for name, folder in folders.items()
    }
    gone = [name for name in folders if name not in kept.split()]
    answer = retain(home, request(**policy), scores)
    assert set(answer.deleted) == {str(folders[name]) for name in gone}
    assert answer.num_bytes == sum(num_bytes[name] for name in gone)
    manifests, problems = list_manifests(store, "r")
    assert {f"{m.incarnation}-{m.step}" for m in manifests} == set(kept.split())
    assert problems == []
    assert all(not folders[name].exists() for name in gone)
    assert retain(home, request(**policy), scores) == RetainAnswer(deleted=(), num_bytes=0)


def test_what_is_in_use_or_pinned_stays_until_it_is_not(home: Home, commit) -> None:
    in_use, pinned, free, newest = (commit(1, step) for step in (1, 2, 3, 4))
    pin(pinned, "fork-a")
    pin(pinned, "fork-a")
    pin(pinned, "fork-b")
    assert pinned_by(pinned) == ["fork-a", "fork-b"]
    assert pinned_by(free) == []
    answer = retain(home, request(in_use=(str(in_use),), keep_last=1), {})
    assert answer.deleted == (str(free),)
    unpin(pinned, "fork-a")
    assert retain(home, request(in_use=(str(in_use),), keep_last=1), {}).deleted == ()
    unpin(pinned, "fork-b")
    unpin(pinned, "fork-b")
    assert retain(home, request(keep_last=1), {}).deleted == (str(in_use), str(pinned))
    assert newest.is_dir()


def test_what_is_gone_cannot_be_pinned(home: Home, commit, begin) -> None:
    gone = commit(1, 1)
    shutil.rmtree(gone)
    for folder in (gone, begin(1, 2)):
        with pytest.raises(ManifestMissing):
            pin(folder, "fork")
        assert pinned_by(folder) == []


def test_a_pin_at_the_last_moment_saves_a_checkpoint(
    home: Home, store: LocalArtifactStore, commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = commit(1, 1)
    commit(1, 2)
    real = retention.pinned_by

    def too_early(folder: Path) -> list[str]:
        found = real(folder)
        if folder.exists():  # retention has looked; it does not know what comes now
            pin(folder, "fork")
        return found

    monkeypatch.setattr(retention, "pinned_by", too_early)
    assert retain(home, request(keep_last=1), {}).deleted == ()
    manifests, _ = list_manifests(store, "r")
    assert [verify_files(store.local_folder(m.key), m) for m in manifests] == [[], []]
    assert old.is_dir()


def test_half_written_checkpoints_go_once_nobody_can_be_writing_them(
    home: Home, store: LocalArtifactStore, commit, begin
) -> None:
    given_up, newest, being_written = begin(1, 2), commit(1, 4), begin(1, 6)
    assert retain(home, request(), {}).deleted == (str(given_up),)
    # A higher incarnation that has nothing but a journal yet.
    store.local_folder("runs/r/journal/2").mkdir(parents=True)
    by_the_new_one = begin(2, 5)
    assert retain(home, request(), {}).deleted == (str(being_written),)
    assert newest.is_dir()
    assert by_the_new_one.is_dir()


def test_damaged_ones_do_not_count_as_kept_and_go_by_their_age(home: Home, commit) -> None:
    folders = {step: commit(1, step) for step in range(1, 6)}
    (folders[5] / "state/a.bin").unlink()
    (folders[3] / "manifest.json").write_bytes(b"")
    (folders[1] / "state/a.bin").write_bytes(b"")
    assert retain(home, request(keep_last=2), {}).deleted == (str(folders[1]),)
    for step in (6, 7):
        commit(1, step)
    assert set(retain(home, request(keep_last=2), {}).deleted) == {
        str(folders[step]) for step in (2, 3, 4, 5)
    }


def test_what_cannot_be_read_just_now_stays(home: Home, commit, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = commit(1, 1)
    for step in (2, 3):
        commit(1, step)
    looked = Path.is_file

    def failing(path: Path) -> bool:
        if unreadable in path.parents:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return looked(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", failing)
        assert retain(home, request(keep_last=1), {}).deleted == (str(unreadable.with_name("1-2")),)
    assert retain(home, request(keep_last=1), {}).deleted == (str(unreadable),)


def test_what_is_not_ours_stays(home: Home, store: LocalArtifactStore, commit) -> None:
    place = store.local_folder("runs/r/checkpoints")
    commit(1, 9)
    shutil.copytree(commit(1, 1, run="another"), place / "1-1")
    commit(1, 2, schema_version=99)
    (place / "1-3").write_text("a file")
    (place / "notes").mkdir()
    assert retain(home, request(keep_last=1), {}).deleted == ()
    assert names(place.parent) == {"1-1", "1-2", "1-3", "1-9", "notes"}
    assert store.exists("runs/another/checkpoints/1-1/manifest.json")


def _retain_and_die(home: Home, point: int) -> None:
    """In a process of its own, which is killed just before its n-th change of the disk."""
    left = [point]

    def before(real: Callable[..., object]) -> Callable[..., object]:
        def strike(*args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return strike

    for name in ("rename", "unlink", "rmdir", "fsync"):
        setattr(os, name, before(getattr(os, name)))
    retain(home, request(keep_last=1), {})


def test_killed_anywhere_checkpoints_are_whole_or_invisible_and_the_next_call_finishes(
    tmp_path: Path, home: Home, store: LocalArtifactStore, commit
) -> None:
    for step in (1, 2, 3):
        commit(1, step)
    deaths = 0
    for point in range(1, 100):
        copy = Home(tmp_path / f"copy-{point}")
        shutil.copytree(home.artifacts, copy.artifacts)
        process = multiprocessing.get_context("fork").Process(target=_retain_and_die, args=(copy, point))
        process.start()
        process.join(30)

        there = LocalArtifactStore(copy.artifacts)
        manifests, problems = list_manifests(there, "r")
        assert problems == [], point
        assert 3 in [manifest.step for manifest in manifests]
        for manifest in manifests:
            assert verify_files(there.local_folder(manifest.key), manifest) == [], point
        retain(copy, request(keep_last=1), {})
        assert names(copy.run_folder("r")) == {"1-3"}, point
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        deaths += 1
    # Two checkpoints: hide it, make that durable, then three files and two folders.
    assert deaths >= 2 * 7
