"""A model-parallel replica of real processes: one fetches and writes, all have the same."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.data_plane.batch import Group
from ratchet.data_plane.blocking import BlockingDataPlane, CallersLoop
from ratchet.data_plane.columns import Cell, Objects
from ratchet.data_plane.errors import BadRequest, NotReady
from ratchet.data_plane.leader import Coordinates, ReplicaPlane
from ratchet.data_plane.memory import MemoryStorage
from ratchet.data_plane.storage import Cells, Wanted
from tests.unit.data_plane.conftest import PARTITION, TASKS, Rig, a_group

RANKS = 2
WITHIN = 60.0


class Counted(MemoryStorage):
    """Knows how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = {"write": 0, "read": 0}

    async def write(self, slots: Sequence[str], cells: Sequence[Cells]) -> list[None]:
        self.calls["write"] += 1
        return await super().write(slots, cells)

    async def read(self, wanted: Sequence[Wanted]) -> list[Any]:
        self.calls["read"] += 1
        return await super().read(wanted)


def rank(number: int, meeting: str, answers: Any) -> None:
    """Every rank has a data plane within reach, and would be seen to use it."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    timeout = timedelta(seconds=WITHIN)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=number, world_size=RANKS, timeout=timeout
    )

    def broadcast(data: Cell | None) -> Cell:
        size = torch.tensor([0 if data is None else len(data)])
        dist.broadcast(size, 0)
        raw = torch.empty(int(size), dtype=torch.uint8) if data is None else torch.from_numpy(data.copy())
        dist.broadcast(raw, 0)
        return raw.numpy()

    storage, loop = Counted(), CallersLoop()
    rig = Rig("memory", storage)
    loop.run(rig.plane.register_partition(PARTITION, TASKS))
    place = Coordinates(tensor=number, pipeline=0, context=0)
    replica = ReplicaPlane(BlockingDataPlane(rig.plane, loop), place, broadcast)
    replica.put(PARTITION, [a_group(key, text=f"by {number}", tags={"n": key}) for key in (1, 2)])
    replica.put(PARTITION, [Group(3, {"none": Objects(())})])
    got = replica.fetch(PARTITION, "train", "replica", [2, 1, 3])
    refused = ""
    try:
        replica.fetch(PARTITION, "train", "replica", [7])
    except NotReady as error:
        refused = str(error)
    replica.ack(PARTITION, "train", "replica", [1, 2, 3])
    told = [
        (group.key, dict(group.tags), {name: _plain(column) for name, column in group.columns.items()})
        for group in got
    ]
    answers.put((number, told, storage.calls, refused))
    dist.destroy_process_group()


def _plain(column: Any) -> Any:
    if isinstance(column, Objects):
        return column.values
    values: np.ndarray = column.values
    return values.dtype.name, values.tobytes(), getattr(column, "lengths", None)


@pytest.mark.timeout(120)
def test_only_the_leader_reads_and_writes_and_all_have_the_same(tmp_path: Path) -> None:
    fresh = multiprocessing.get_context("spawn")
    answers = fresh.Queue()
    ranks = [
        fresh.Process(target=rank, args=(number, str(tmp_path / "meeting"), answers), daemon=True)
        for number in range(RANKS)
    ]
    try:
        for each in ranks:
            each.start()
        found = sorted((answers.get(timeout=WITHIN) for _ in ranks), key=lambda answer: answer[0])
    finally:
        for each in ranks:
            each.join(10.0)
            each.kill()
    _, told, calls, refused = found[0]
    assert [key for key, _, _ in told] == [2, 1, 3]
    assert told[0][2]["text"] == ("by 0", "by 0")
    assert told[0][2]["tokens"] == ("int32", np.full(3, 2, np.int32).tobytes(), (1, 2))
    assert "7" in refused
    assert calls == {"write": 2, "read": 1}
    for _, others, calls, refusal in found[1:]:
        assert (others, refusal) == (told, refused)
        assert calls == {"write": 0, "read": 0}


@pytest.mark.parametrize("given", [None, True, -1, "0"])
def test_a_place_is_not_guessed(given: Any) -> None:
    with pytest.raises(BadRequest, match="the pipeline rank in the replica is"):
        Coordinates(tensor=0, pipeline=given, context=0)
