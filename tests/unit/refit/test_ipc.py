"""Shared memory between processes: the same bits over there, nothing left behind, and no SIGBUS."""

import gc
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from ratchet.refit.ipc import ShmReceiver, ShmSender
from ratchet.refit.manifest import RefitManifest
from ratchet.refit.segments import SHARED_MEMORY, sweep
from ratchet.spec.faults import InfraFault, StorageFault
from ratchet.spec.ids import WeightVersion


def version(step: int) -> WeightVersion:
    return WeightVersion(incarnation=1, step=step, digest=f"{step:032x}")


def weights(step: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(step)
    return {"embed": torch.randn(100, 16), "norm": torch.randn(16), "bias": torch.randn(3)}


BF16 = dict.fromkeys(weights(0), "bfloat16")
FP32 = dict.fromkeys(weights(0), "float32")


@pytest.fixture
def prefix() -> Iterator[str]:
    """A prefix of this test's own; whatever happens, its segments go."""
    name = f"test{secrets.token_hex(4)}"
    yield name
    for path in SHARED_MEMORY.glob(f"ratchet-{name}-*"):
        path.unlink()


def segments(prefix: str) -> list[str]:
    return sorted(path.name for path in SHARED_MEMORY.glob(f"ratchet-{prefix}-*"))


RECEIVE = """
import json, sys
import torch
from ratchet.refit.ipc import ShmReceiver
from ratchet.refit.manifest import RefitManifest

receiver = ShmReceiver()
for line in sys.stdin:
    manifest = RefitManifest.model_validate_json(line)
    with receiver.open(manifest) as tensors:
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
    answer = {name: [str(t.dtype), list(t.shape), bytes(t.reshape(-1).view(torch.uint8).tolist()).hex()]
              for name, t in copies.items()}
    print(json.dumps({"digest": manifest.digest, "tensors": answer}), flush=True)
"""


@pytest.mark.parametrize(("dtypes", "dtype"), [(FP32, torch.float32), (BF16, torch.bfloat16)])
def test_another_process_receives_the_same_bits_step_after_step(
    prefix: str, dtypes: dict[str, str], dtype: torch.dtype
) -> None:
    sender = ShmSender(prefix)
    command = [sys.executable, "-c", RECEIVE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step in (1, 2, 3):
            manifest = sender.stage(version(step), weights(step), dtypes)
            process.stdin.write(manifest.model_dump_json() + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert answer["digest"] == manifest.digest
            for name, tensor in weights(step).items():
                sent = tensor.to(dtype)
                bits = bytes(sent.reshape(-1).view(torch.uint8).tolist()).hex()
                assert answer["tensors"][name] == [str(dtype), list(tensor.shape), bits]
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    # A receiver that ends takes nothing with it (multiprocessing's resource tracker would).
    assert segments(prefix) == [manifest.segment]
    sender.close()
    assert segments(prefix) == []


def test_segment_and_mapping_are_kept_while_the_size_stays(prefix: str) -> None:
    sender, receiver = ShmSender(prefix), ShmReceiver()
    addresses: set[int] = set()
    names: set[str] = set()
    for step in range(3):
        manifest = sender.stage(version(step), weights(step), BF16)
        names.add(manifest.segment)
        with receiver.open(manifest) as tensors:
            addresses.add(tensors["embed"].data_ptr())
            assert torch.equal(tensors["embed"], weights(step)["embed"].bfloat16())
    assert len(names) == 1
    assert len(addresses) == 1

    larger = sender.stage(version(9), weights(9), FP32)
    assert larger.segment not in names
    assert segments(prefix) == [larger.segment]
    with receiver.open(larger) as tensors:
        assert torch.equal(tensors["embed"], weights(9)["embed"])
    sender.close()


def test_a_receiver_follows_a_sender_that_was_replaced(prefix: str) -> None:
    receiver = ShmReceiver()
    for step in (1, 2):
        sender = ShmSender(prefix)  # the first one was killed, say, and has left its segment
        with receiver.open(sender.stage(version(step), weights(step), BF16)) as tensors:
            assert torch.equal(tensors["norm"], weights(step)["norm"].bfloat16())
    assert len(segments(prefix)) == 2


def test_one_receiver_cannot_spoil_another(prefix: str) -> None:
    manifest = ShmSender(prefix).stage(version(1), weights(1), FP32)
    with ShmReceiver().open(manifest) as careless, ShmReceiver().open(manifest) as other:
        careless["embed"].zero_()
        assert torch.equal(other["embed"], weights(1)["embed"])


def test_a_receiver_that_wrote_to_its_tensors_is_right_again_at_the_second_try(prefix: str) -> None:
    sender, receiver = ShmSender(prefix), ShmReceiver()
    with receiver.open(sender.stage(version(1), weights(1), FP32)) as tensors:
        tensors["embed"].zero_()
        del tensors
    manifest = sender.stage(version(2), weights(2), FP32)
    with pytest.raises(InfraFault), receiver.open(manifest):
        pass
    with receiver.open(manifest) as tensors:
        assert torch.equal(tensors["embed"], weights(2)["embed"])


def test_tensors_outlive_everything_that_was_closed(prefix: str) -> None:
    sender, receiver = ShmSender(prefix), ShmReceiver()
    with receiver.open(sender.stage(version(1), weights(1), FP32)) as tensors:
        kept = tensors["embed"]
    receiver.close()
    sender.close()
    del tensors
    gc.collect()
    assert torch.equal(kept, weights(1)["embed"])


def test_a_flipped_byte_is_refused(prefix: str) -> None:
    manifest = ShmSender(prefix).stage(version(1), weights(1), BF16)
    with (SHARED_MEMORY / manifest.segment).open("r+b") as file:
        file.seek(manifest.layout.entries[1].offset + 5)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    with pytest.raises(InfraFault, match=f"bucket 0 of {manifest.segment}"), ShmReceiver().open(manifest):
        pass


def test_an_old_manifest_is_refused_once_the_next_version_is_staged(prefix: str) -> None:
    sender = ShmSender(prefix)
    old = sender.stage(version(1), weights(1), BF16)
    sender.stage(version(2), weights(2), BF16)
    with pytest.raises(InfraFault, match="does not have the digest"), ShmReceiver().open(old):
        pass


def test_a_segment_that_is_gone_or_cut_short_is_named(prefix: str) -> None:
    sender = ShmSender(prefix)
    manifest = sender.stage(version(1), weights(1), BF16)
    os.truncate(SHARED_MEMORY / manifest.segment, 100)
    with pytest.raises(InfraFault, match="has 100 bytes and should have"), ShmReceiver().open(manifest):
        pass
    sweep(prefix)
    with pytest.raises(InfraFault, match=f"{manifest.segment} is gone; stage it again"):
        with ShmReceiver().open(manifest):
            pass
    with ShmReceiver().open(sender.stage(version(1), weights(1), BF16)) as tensors:
        assert torch.equal(tensors["norm"], weights(1)["norm"].bfloat16())


def test_a_manifest_cannot_name_a_file_elsewhere(prefix: str) -> None:
    manifest = ShmSender(prefix).stage(version(1), weights(1), BF16)
    with pytest.raises(ValueError, match="segment"):
        RefitManifest.model_validate(manifest.model_dump() | {"segment": "../etc/passwd"})


def test_sweep_removes_what_a_killed_sender_left_and_nothing_else(prefix: str) -> None:
    script = """
import os, signal, sys, torch
from ratchet.refit.ipc import ShmSender
from ratchet.spec.ids import WeightVersion
ShmSender(sys.argv[1]).stage(
    WeightVersion(incarnation=1, step=1, digest="0"), {"w": torch.ones(100)}, {"w": "float32"}
)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, f"{prefix}-a"], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    neighbour = ShmSender(f"{prefix}-b")
    neighbour.stage(version(1), weights(1), BF16)
    assert len(segments(prefix)) == 2
    assert len(sweep(f"{prefix}-a")) == 1
    assert segments(prefix) == segments(f"{prefix}-b") != []
    assert sweep(prefix) == []  # the common part is nobody's
    neighbour.close()
    assert segments(prefix) == []


def test_too_little_room_is_said_before_anything_is_written(prefix: str) -> None:
    status = os.statvfs(SHARED_MEMORY)
    free = status.f_bavail * status.f_frsize
    huge = {"w": torch.zeros(1).expand(free // 4 + (1 << 20))}  # takes no memory of its own
    with pytest.raises(StorageFault, match=r"/dev/shm: \d+ bytes needed, \d+ free; free space there"):
        ShmSender(prefix).stage(version(1), huge, {"w": "float32"})
    assert segments(prefix) == []


def test_room_that_vanishes_meanwhile_is_an_error_too(prefix: str) -> None:
    script = """
import resource, sys, torch
from ratchet.refit.ipc import ShmSender
from ratchet.spec.faults import StorageFault
from ratchet.spec.ids import WeightVersion
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # the reservation fails, whatever statvfs said
try:
    ShmSender(sys.argv[1]).stage(
        WeightVersion(incarnation=1, step=1, digest="0"), {"w": torch.ones(10000)}, {"w": "float32"}
    )
except StorageFault as fault:
    print(fault)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, prefix], capture_output=True, text=True, check=True, timeout=60
    )
    assert "40000 bytes needed" in done.stdout
    assert segments(prefix) == []
