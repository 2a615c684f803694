"""Writing and loading checkpoints: the same bits, one commit, and damage by name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ratchet.artifacts.manifest import read_manifest, verify_files
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.checkpoints.loader import load_checkpoint
from ratchet.checkpoints.state import state_digest
from ratchet.checkpoints.writer import WrittenCheckpoint, write_checkpoint
from ratchet.spec.faults import Conflict, SpecError, StorageFault
from ratchet.spec.ids import WeightVersion


def trained_state(seed: int = 0) -> dict[str, object]:
    """Model and AdamW after two steps, and RNG states, as a trainer has them."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3).to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "rng": {"torch": torch.get_rng_state(), "numbers": (3, (1, 2, float("inf")), None), "empty": {}},
    }


def blank(value: object, device: str = "cpu") -> object:
    """A template: the same structure, none of the contents."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device=device).fill_(0)
    if isinstance(value, dict):
        return {key: blank(item, device) for key, item in value.items()}
    return [] if isinstance(value, list) else None


def template(device: str = "cpu") -> dict[str, object]:
    made = blank(trained_state(), device)
    assert isinstance(made, dict)
    return made


def write(folder: Path, state: dict[str, object], step: int = 20, run: str = "r") -> WrittenCheckpoint:
    return write_checkpoint(
        folder,
        state,
        run=run,
        incarnation=1,
        step=step,
        cursor=80,
        version=WeightVersion(incarnation=1, step=step, digest="0" * 32),
        base_model="base",
        spec_digest="spec",
    )


def folder_of(tmp_path: Path, step: int = 20, run: str = "r") -> Path:
    return LocalArtifactStore(tmp_path).local_folder(f"runs/{run}/checkpoints/1-{step}")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_checkpoint_gives_back_the_same_bits(tmp_path: Path, device: str) -> None:
    state = trained_state()
    written = write(folder_of(tmp_path), state)
    loaded = load_checkpoint(folder_of(tmp_path), template(device), "r")
    assert state_digest(loaded) == state_digest(state) == written.digest
    assert loaded["rng"]["numbers"] == (3, (1, 2, float("inf")), None)  # type: ignore[index]
    assert loaded["rng"]["empty"] == {}  # type: ignore[index]
    optimizer = torch.optim.AdamW(
        [*torch.nn.Linear(7, 5).parameters(), *torch.nn.Linear(5, 3).to(torch.bfloat16).parameters()]
    )
    optimizer.load_state_dict(loaded["optimizer"])  # type: ignore[arg-type]


def test_the_report_is_what_lies_on_disk(tmp_path: Path) -> None:
    written = write(folder_of(tmp_path), trained_state())
    manifest = read_manifest(folder_of(tmp_path), "r")
    files = [p for p in folder_of(tmp_path).rglob("*") if p.is_file() and p.name != "manifest.json"]
    assert written.num_files == len(files) == len(manifest.files)
    assert written.num_bytes == sum(path.stat().st_size for path in files)
    assert written.manifest_digest == manifest.digest
    assert (manifest.run, manifest.incarnation, manifest.step, manifest.cursor) == ("r", 1, 20, 80)
    assert manifest.state_digest == written.digest
    assert verify_files(folder_of(tmp_path), manifest) == []


def test_the_digest_does_not_depend_on_where_when_or_for_whom(tmp_path: Path) -> None:
    first = write(folder_of(tmp_path), trained_state())
    second = write(folder_of(tmp_path, 40, "another"), trained_state(), 40, "another")
    assert first.digest == second.digest
    assert first.manifest_digest != second.manifest_digest
    assert write(folder_of(tmp_path, 60), trained_state(seed=1), 60).digest != first.digest


def test_writing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    first = write(folder_of(tmp_path), trained_state())
    inode = (folder_of(tmp_path) / "manifest.json").stat().st_ino
    again = write(folder_of(tmp_path), trained_state())
    assert (again.digest, again.manifest_digest) == (first.digest, first.manifest_digest)
    assert (folder_of(tmp_path) / "manifest.json").stat().st_ino == inode


def test_another_state_for_the_same_step_is_a_conflict(tmp_path: Path) -> None:
    first = write(folder_of(tmp_path), trained_state())
    with pytest.raises(Conflict, match="another state"):
        write(folder_of(tmp_path), trained_state(seed=1))
    assert read_manifest(folder_of(tmp_path), "r").state_digest == first.digest


def test_another_runs_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    write(folder_of(tmp_path), trained_state())
    with pytest.raises(Conflict, match="belongs to run r"):
        write(folder_of(tmp_path), trained_state(), run="another")
    assert verify_files(folder_of(tmp_path), read_manifest(folder_of(tmp_path), "r")) == []


def test_a_damaged_checkpoint_of_the_same_state_is_written_anew(tmp_path: Path) -> None:
    write(folder_of(tmp_path), trained_state())
    next((folder_of(tmp_path) / "state").glob("*.distcp")).unlink()
    write(folder_of(tmp_path), trained_state())
    load_checkpoint(folder_of(tmp_path), template(), "r")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t["model"].pop("0.bias"), "model/0.bias is float32\\[5\\].*absent in the run"),
        (lambda t: t["model"].update(more=torch.ones(1)), "model/more is absent in the checkpoint"),
        (lambda t: t["model"].update({"0.bias": torch.ones(6)}), "model/0.bias is float32\\[5\\]"),
        (lambda t: t["model"].update({"0.bias": torch.ones(5).double()}), "float64\\[5\\] in the run"),
        (lambda t: t["rng"].update(empty=torch.ones(1)), "rng/empty is a plain value in the checkpoint"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path, change: object, named: str) -> None:
    write(folder_of(tmp_path), trained_state())
    other = template()
    change(other)  # type: ignore[operator]
    with pytest.raises(SpecError, match=named):
        load_checkpoint(folder_of(tmp_path), other, "r")


def test_a_failing_export_leaves_nothing_behind(tmp_path: Path) -> None:
    def export(target: Path) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFault, match=r"no space left.*free space"):
        write_checkpoint(
            folder_of(tmp_path),
            trained_state(),
            run="r",
            incarnation=1,
            step=20,
            cursor=80,
            version=WeightVersion(incarnation=1, step=20, digest="0" * 32),
            base_model="base",
            spec_digest="spec",
            hf_export=export,
        )
    assert not folder_of(tmp_path).exists()


FULL_DISK = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_round_trip as case
from ratchet.spec.faults import StorageFault

root, outcomes = Path(sys.argv[1]), []
for limit in (0, 700, 1500, 4000):  # bytes a file may have: the system's own EFBIG, at several depths
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        case.write(case.folder_of(root), case.trained_state())
        outcomes.append("committed")
    except StorageFault as fault:
        outcomes.append(str(fault))
    outcomes.append(case.folder_of(root).exists())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
case.write(case.folder_of(root), case.trained_state())
case.load_checkpoint(case.folder_of(root), case.template(), "r")
print(json.dumps(outcomes))
"""


def test_a_full_disk_is_one_line_leaves_nothing_and_is_forgotten_once_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    outcomes = json.loads(done.stdout)
    for message, left_over in zip(outcomes[::2], outcomes[1::2], strict=True):
        assert "file too large; free space there, or move RATCHET_HOME" in message, message
        assert str(tmp_path) in message
        assert "\n" not in message
        assert not left_over


def test_a_file_in_the_way_is_named_and_left_alone(tmp_path: Path) -> None:
    in_the_way = folder_of(tmp_path)
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("mine")
    with pytest.raises(StorageFault, match="is a file where a checkpoint folder should be; move it away"):
        write(folder_of(tmp_path), trained_state())
    assert in_the_way.read_text() == "mine"

    shutil.rmtree(in_the_way.parent)
    in_the_way.parent.write_text("mine")
    with pytest.raises(StorageFault, match="move away the file"):
        write(folder_of(tmp_path), trained_state())
    assert in_the_way.parent.read_text() == "mine"
