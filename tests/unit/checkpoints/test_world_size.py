"""A checkpoint that one process wrote is loaded by two, each of which gets its own half."""

import os
import subprocess
import sys
from pathlib import Path

LOADER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from ratchet.checkpoints.loader import load_checkpoint
from ratchet.checkpoints.state import flatten
import test_round_trip as case

root, rank = Path(sys.argv[1]), int(sys.argv[2])
if rank == 0:
    case.write(case.folder_of(root), case.trained_state())
dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def sharded(value):
    if isinstance(value, dict):
        return {key: sharded(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
        return distribute_tensor(value, mesh, [Shard(0)])
    return value


found = flatten(load_checkpoint(case.folder_of(root), sharded(case.template()), "r"))
parts = 0
for name, expected in flatten(case.trained_state()).items():
    value = found[name]
    if isinstance(value, DTensor):
        parts += value.to_local().shape[0] < expected.shape[0]
        value = value.full_tensor()
    assert torch.equal(value, expected) if isinstance(expected, torch.Tensor) else value == expected, name
assert parts == 12, parts  # four parameters with two moments each
dist.destroy_process_group()
"""


def test_two_processes_load_what_one_wrote(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LOADER, str(tmp_path), str(rank), here],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.wait(60) == 0, rank.communicate()[1]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
