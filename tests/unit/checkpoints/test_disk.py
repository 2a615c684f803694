"""A disk that is full, or read-only: one line with the fix, and everything committed before is untouched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]

ON_A_SMALL_DISK = """
import json, subprocess, sys
from pathlib import Path
disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
sys.path.insert(0, sys.argv[2])
import torch
import test_round_trip as case
from ratchet.artifacts.checkpoints import list_manifests
from ratchet.artifacts.manifest import verify_files
from ratchet.artifacts.retention import retain
from ratchet.artifacts.store import LocalArtifactStore
from ratchet.spec.control import RetainRequest
from ratchet.spec.faults import StorageFault
from ratchet.spec.home import Home

home = Home(disk.parent)
store = LocalArtifactStore(home.artifacts)
state = {"model": {"weight": torch.arange(50_000.0)}}
keep_one = RetainRequest.model_validate({"run": "r", "in_use": [], "spec": {
    "name": "unit", "policy": {"model": "tiny"}, "generation": {"max_new_tokens": 5},
    "grpo": {"num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 4},
    "environment": {"name": "arithmetic"}, "checkpointing": {"keep_last": 1},
}})
told = {}


def attempt(name, work):
    try:
        work()
        told[name] = "done"
    except StorageFault as fault:
        told[name] = str(fault)


def write():
    case.write(case.folder_of(disk), state)


def delete():
    retain(home, keep_one, {})


def whole():
    manifests, problems = list_manifests(store, "r")
    damage = [verify_files(store.local_folder(m.key), m) for m in manifests]
    assert not problems and not any(damage), (problems, damage)
    return [manifest.step for manifest in manifests]


def fill(but):
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
        file.truncate(file.tell() - but)


def remount(mode):
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)


for step in (10, 12):
    case.write(case.folder_of(disk, step), state, step)
for name, room in (("no room for a byte", 0), ("room for some files", 8_192), ("half", 100_000)):
    fill(but=room)
    attempt(name, write)
    assert whole() == [12, 10] and not case.folder_of(disk).exists(), name
remount("ro")
attempt("read-only", write)
attempt("nothing to be deleted", delete)
assert whole() == [12, 10]
remount("rw")
attempt("deleted", delete)  # a full disk does not keep anybody from making room
attempt("room again", write)
assert whole() == [20, 12]
template = {"model": {"weight": torch.zeros(50_000)}}
loaded = case.load_checkpoint(case.folder_of(disk), template, "r")
assert torch.equal(loaded["model"]["weight"], state["model"]["weight"])
print(json.dumps(told))
"""


def test_nothing_is_lost_to_a_full_or_read_only_disk(tmp_path: Path) -> None:
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a disk of their own")
    disk = tmp_path / "artifacts"
    disk.mkdir()
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", ON_A_SMALL_DISK, str(disk), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for name in ("no room for a byte", "room for some files", "half"):
        assert "no space left on device; free space there, or move RATCHET_HOME" in told[name]
        assert str(disk) in told[name]
    fix = "read-only file system; make it writable for this user, or move RATCHET_HOME"
    assert fix in told["read-only"]
    assert fix in told["nothing to be deleted"]
    assert told["deleted"] == told["room again"] == "done"
