"""Whatever happens to the newest checkpoint of a real trainer has a name, and leads to the older one."""

import errno
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.artifacts.manifest import (
    FilesDamaged,
    ManifestDamaged,
    ManifestForeign,
    ManifestMissing,
    checkpoint_key,
    commit_manifest,
    read_manifest,
)
from ratchet.artifacts.restore_points import restore_point
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.checkpoints.loader import load_checkpoint
from ratchet.checkpoints.writer import write_checkpoint
from ratchet.models.tiny import build_tiny
from ratchet.policy.torch_trainer import TorchTrainer
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.faults import CheckpointDamaged, StorageFault
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.run_spec import EnvironmentSpec, GenerationSpec, GrpoSpec, PolicySpec, RunSpec

RUN = "r"
FILES = (
    "hf/config.json",
    "hf/generation_config.json",
    "hf/model.safetensors",
    "hf/tokenizer.json",
    "hf/tokenizer_config.json",
    "state/.metadata",
    "state/__0_0.distcp",
)
SPEC = RunSpec(
    name="unit",
    policy=PolicySpec(model="tiny", train_micro_batch_size=2),
    generation=GenerationSpec(max_new_tokens=4),
    grpo=GrpoSpec(num_prompts_per_step=1, num_generations_per_prompt=2, max_num_steps=2),
    environment=EnvironmentSpec(name="arithmetic"),
)


def group_of(step: int) -> PromptGroup:
    version = WeightVersion(incarnation=1, step=step - 1, digest="0" * 32)
    samples = [
        Sample(
            tokens=np.array([5 + step, 7 + index], dtype=np.int32),
            logprobs=np.array([-4.0, -5.0], dtype=np.float32),
            mask=np.ones(2, dtype=np.uint8),
            finish_reason="stop",
            text="",
            reward=float(index),
            rewards={"exact": float(index)},
            correct=bool(index),
            seed=index,
        )
        for index in range(2)
    ]
    return PromptGroup(
        step, 1, f"p{step}", np.array([4, 9], dtype=np.int32), version, version, tuple(samples)
    )


@dataclass(frozen=True)
class Saved:
    home: Home
    trainer: TorchTrainer
    digests: dict[int, str]
    """Of the weights after each step."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Two steps of the trainer of `tiny`, each with its checkpoint."""
    root = tmp_path_factory.mktemp("saved")
    torch.set_num_threads(1)
    build_tiny(root / "model", sft_steps=0)
    trainer = TorchTrainer(SPEC)
    trainer.open(root / "model")
    digests: dict[int, str] = {}
    home = Home(root / "home")
    for step in (1, 2):
        trainer.train(step, [group_of(step)])
        digests[step] = trainer.digest()
        state = trainer.state()
        write_checkpoint(
            newest_of(home, step),
            state,
            run=RUN,
            incarnation=1,
            step=step,
            cursor=step,
            version=WeightVersion(incarnation=1, step=step, digest=digests[step]),
            base_model="base",
            spec_digest="spec",
            hf_export=lambda target: trainer.export_hf(target, trainer.weights()),
        )
    return Saved(home, trainer, digests)


@pytest.fixture
def home(saved: Saved, tmp_path: Path) -> Home:
    """A copy of both checkpoints, to be damaged."""
    copy = Home(tmp_path / "home")
    shutil.copytree(saved.home.artifacts, copy.artifacts)
    return copy


def newest_of(home: Home, step: int = 2, run: str = RUN) -> Path:
    return LocalArtifactStore(home.artifacts).local_folder(checkpoint_key(run, 1, step))


def recover(home: Home, trainer: TorchTrainer) -> tuple[int, list[str]]:
    """What a run does: take the newest checkpoint, and if it turns out to be damaged the next older.
    The step it ends at, and everything that was said on the way."""
    avoid: list[str] = []
    said: list[str] = []
    while True:
        point = restore_point(home, RUN, avoid)
        said += point.passed_over
        assert point.checkpoint is not None
        try:
            trainer.load_state(load_checkpoint(Path(point.checkpoint.path), trainer.state_template(), RUN))
        except StorageFault as fault:
            said.append(str(fault))
            avoid.append(point.checkpoint.path)
            continue
        assert trainer.digest() == point.checkpoint.version.digest
        return point.step, said


def test_undamaged_the_newest_is_taken_in_silence(saved: Saved, home: Home) -> None:
    assert recover(home, saved.trainer) == (2, [])
    assert saved.digests[1] != saved.digests[2] == saved.trainer.digest()
    assert tuple(entry.path for entry in read_manifest(newest_of(home)).files) == FILES


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_the_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def flip_the_first_byte(path: Path) -> None:
    flip(path, 0)


def flip_a_byte_in_the_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def flip_the_last_byte(path: Path) -> None:
    flip(path, -1)


def delete(path: Path) -> None:
    path.unlink()


def put_a_folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


CUTS = {truncate: "bytes and should have", cut_the_last_byte: "bytes and should have"}
LOSSES = {delete: "is missing", put_a_folder_in_its_place: "is missing"}
FLIPS = dict.fromkeys((flip_the_first_byte, flip_a_byte_in_the_middle, flip_the_last_byte), "sha256")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("damage", "cause"), [*CUTS.items(), *LOSSES.items(), *FLIPS.items()])
def test_a_damaged_file_is_named_and_the_older_checkpoint_restored(
    saved: Saved, home: Home, file: str, damage: Callable[[Path], None], cause: str
) -> None:
    path = newest_of(home) / file
    damage(path)
    with pytest.raises(FilesDamaged) as caught:
        load_checkpoint(newest_of(home), saved.trainer.state_template(), RUN)
    assert str(path) in str(caught.value)
    assert cause in str(caught.value)
    # Sizes are seen before anything is loaded; contents when it is, and from then on the folder is avoided.
    assert (restore_point(home, RUN).step == 2) == (damage in FLIPS)
    step, said = recover(home, saved.trainer)
    assert step == 1
    assert str(path) in said[0]
    assert saved.trainer.digest() == saved.digests[1]


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"")


def flipped_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"cursor": 2', '"cursor": 3'))


def manifest_of_another_run(folder: Path) -> None:
    commit_manifest(folder, read_manifest(folder).model_copy(update={"run": "another"}))


def manifest_of_another_step(folder: Path) -> None:
    shutil.copy(folder.with_name("1-1") / "manifest.json", folder)


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def half_written(folder: Path) -> None:
    for name in ("manifest.json", "state/.metadata", "hf/model.safetensors"):
        (folder / name).unlink()


def file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a checkpoint")


@pytest.mark.parametrize(
    ("damage", "error", "cause"),
    [
        (empty_manifest, ManifestDamaged, "manifest.json is empty"),
        (flipped_manifest, ManifestDamaged, "do not have its own sha256"),
        (manifest_of_another_run, ManifestForeign, "belongs to run another"),
        (manifest_of_another_step, FilesDamaged, "1-2 holds checkpoint 1-1"),
        (no_manifest, ManifestMissing, "no checkpoint was committed there"),
        (half_written, ManifestMissing, "no checkpoint was committed there"),
        (file_in_its_place, ManifestDamaged, "is a file where a checkpoint folder should be"),
    ],
)
def test_a_damaged_manifest_or_folder_is_named_and_the_older_checkpoint_restored(
    saved: Saved,
    home: Home,
    damage: Callable[[Path], None],
    error: type[StorageFault],
    cause: str,
) -> None:
    folder = newest_of(home)
    damage(folder)
    with pytest.raises(error) as caught:
        load_checkpoint(folder, saved.trainer.state_template(), RUN)
    assert str(folder) in str(caught.value)
    step, said = recover(home, saved.trainer)
    assert step == 1
    assert len(said) == 1
    assert cause in said[0]
    assert saved.trainer.digest() == saved.digests[1]


def test_with_both_damaged_nothing_is_restored(saved: Saved, home: Home) -> None:
    flip_a_byte_in_the_middle(newest_of(home, 2) / FILES[-1])
    truncate(newest_of(home, 1) / FILES[-1])
    with pytest.raises(CheckpointDamaged, match="every checkpoint is unusable"):
        restore_point(home, RUN, avoid=[str(newest_of(home))])


@pytest.mark.parametrize("file", ["manifest.json", "state/.metadata", "state/__0_0.distcp"])
@pytest.mark.parametrize("read", [1, 2])
def test_a_read_error_condemns_no_checkpoint(
    saved: Saved, home: Home, monkeypatch: pytest.MonkeyPatch, file: str, read: int
) -> None:
    """Not when it is verified (the first read), nor when it is loaded (the second)."""
    broken, reads, opened = newest_of(home) / file, 0, io.open

    def flaky(path: object, *args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        if str(path) == str(broken):
            reads += 1
            if reads == read:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", flaky)
        patch.setattr("builtins.open", flaky)
        if (file, read) == ("manifest.json", 2):
            load_checkpoint(newest_of(home), saved.trainer.state_template(), RUN)  # it is read once
        else:
            with pytest.raises(StorageFault, match="input/output error") as caught:
                load_checkpoint(newest_of(home), saved.trainer.state_template(), RUN)
            assert not isinstance(caught.value, CheckpointDamaged)
    assert recover(home, saved.trainer) == (2, [])
