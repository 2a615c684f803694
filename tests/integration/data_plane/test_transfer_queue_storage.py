"""What a Storage promises, of TransferQueue's: real controllers, storage units, masters and objects."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from ratchet.data_plane.batch import Placement
from ratchet.data_plane.columns import Cell
from ratchet.data_plane.errors import DataPlaneUnavailable
from ratchet.data_plane.storage import Cells, Storage, Wanted
from ratchet.data_plane.transfer_queue import Connection
from ratchet.data_plane.transfer_queue.connection import open_client
from workers.actors.data_plane import open_storage_of
from workers.actors.loops import Loop
from workers.actors.transfer_queue import TransferQueueParts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BACKENDS = ("simple", "mooncake_cpu", "ray")
MIB = 2**20
ROOM = 64 * MIB
SECONDS = 20.0
"""For a call to notice that who should answer is dead: its deadline is 5 s, and machines differ."""

# A worker of Ray cannot import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@ray.remote(num_cpus=0, max_restarts=0)
class Peer:
    """Another process with a storage of its own."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._loop = Loop(name)
        self._storage: Any = self._loop.run(open_storage_of(connection, name))

    def call(self, method: str, *arguments: Any) -> Any:
        return self._loop.run(getattr(self._storage, method)(*arguments))

    def pid(self) -> int:
        return os.getpid()


class Rig:
    """The parts of one TransferQueue, and the owner's storage of it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.parts = TransferQueueParts(backend, 2, ROOM)
        self.own, self.others = self.parts.start()
        self.loop = Loop(backend)
        self.owner: Storage = self.loop.run(open_storage_of(self.own, "owner"))

    def peer(self, name: str) -> Any:
        made: Any = Peer
        return made.remote(self.others, name)

    def end(self) -> None:
        self.owner.close()
        self.parts.end()


@pytest.fixture(scope="module", params=BACKENDS)
def rig(request: pytest.FixtureRequest, cluster: None) -> Iterator[Rig]:
    needs(request.param)
    rig = Rig(request.param)
    yield rig
    rig.end()


def needs(backend: str) -> None:
    if backend == "mooncake_cpu":
        pytest.importorskip(
            "mooncake.store", reason="Mooncake needs libibverbs1 librdmacm1 libnuma1", exc_type=ImportError
        )
    if backend == "ray":
        pytest.importorskip("nixl", exc_type=ImportError)


def a_cell(size: int, seed: int = 0) -> Cell:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def wanted(slots: Sequence[str], cells: Sequence[Cells], locators: Sequence[Any]) -> list[Wanted]:
    found: list[Wanted] = []
    for slot, of_slot, locator in zip(slots, cells, locators, strict=True):
        sizes = {name: cell.nbytes for name, cell in of_slot.items()}
        found.append(Wanted(Placement(slot, locator, sum(sizes.values())), sizes))
    return found


def written(storage: Any, cells: Sequence[Cells], run: Callable[..., Any]) -> list[Wanted]:
    slots = [str(index) for index in range(len(cells))]
    return wanted(slots, cells, run(storage.write(slots, cells)))


def same(read: Sequence[dict[str, Cell] | None], cells: Sequence[Cells]) -> bool:
    return len(read) == len(cells) and all(
        one is not None
        and one.keys() == other.keys()
        and all(np.array_equal(one[n], other[n]) for n in other)
        for one, other in zip(read, cells, strict=True)
    )


MANY: list[Cells] = [
    *({"tokens": a_cell(size, size), "rewards": a_cell(7, size)} for size in (1, 1000, 65_536, 300_000)),
    {"tokens": a_cell(8 * MIB)},
    {"mask": a_cell(262_145), "text": a_cell(3)},
    *({f"column-{column}": a_cell(100, column) for column in range(4)} for _ in range(16)),
]


def test_what_was_written_is_read_wherever_it_was_written(rig: Rig) -> None:
    peer = rig.peer("producer")
    slots = [str(index) for index in range(len(MANY))]
    there = wanted(slots, MANY, ray.get(peer.call.remote("write", slots, MANY), timeout=60))
    assert same(rig.loop.run(rig.owner.read(there)), MANY)
    assert same(ray.get(peer.call.remote("read", there), timeout=60), MANY)
    here = written(rig.owner, MANY, rig.loop.run)
    assert same(ray.get(peer.call.remote("read", here), timeout=60), MANY)
    some = [Wanted(one.placement, dict([next(iter(one.columns.items()))])) for one in reversed(here)]
    read = rig.loop.run(rig.owner.read(some))
    assert same(
        read,
        [
            {name: of_slot[name] for name in one.columns}
            for one, of_slot in zip(some, MANY[::-1], strict=True)
        ],
    )
    rig.loop.run(rig.owner.erase([*there, *here]))
    assert rig.loop.run(rig.owner.held()) in (0, None)


def test_what_was_erased_is_gone_and_the_rest_is_not(rig: Rig) -> None:
    cells: list[Cells] = [{"a": a_cell(1000, seed), "b": a_cell(200_000, seed)} for seed in range(4)]
    there = [written(rig.owner, [of_slot], rig.loop.run)[0] for of_slot in cells]  # a parcel each
    for _ in range(2):  # again: no error
        rig.loop.run(rig.owner.erase(there[1:3]))
    first, second, third, fourth = rig.loop.run(rig.owner.read(there))
    assert (second, third) == (None, None)
    assert same([first, fourth], [cells[0], cells[3]])
    rig.loop.run(rig.owner.erase(there))
    assert rig.loop.run(rig.owner.read(there)) == [None] * 4
    assert rig.loop.run(rig.owner.held()) in (0, None)


def test_a_cell_of_another_length_reads_as_lost(rig: Rig) -> None:
    cells: list[Cells] = [{"a": a_cell(10)}, {"a": a_cell(300_000)}]
    there = written(rig.owner, cells, rig.loop.run)
    longer = [Wanted(one.placement, {name: size + 1 for name, size in one.columns.items()}) for one in there]
    assert rig.loop.run(rig.owner.read(longer)) == [None, None]
    rig.loop.run(rig.owner.erase(there))


def test_what_is_erased_takes_no_room(rig: Rig) -> None:
    """More than there is room for goes through, if each is erased before the next."""
    for seed in range(2 * ROOM // (16 * MIB)):
        cells: list[Cells] = [{"a": a_cell(16 * MIB, seed)}]
        there = written(rig.owner, cells, rig.loop.run)
        assert same(rig.loop.run(rig.owner.read(there)), cells)
        rig.loop.run(rig.owner.erase(there))


def test_writers_at_once_do_not_meet(rig: Rig) -> None:
    """In one process, and in another."""

    def cells_of(writer: int) -> list[Cells]:
        return [
            {"a": a_cell(300_000 - writer, writer)},
            *({"a": a_cell(50, 100 * writer + n)} for n in range(30)),
        ]

    async def write(writer: int) -> list[Wanted]:
        cells = cells_of(writer)
        slots = [f"{writer}-{index}" for index in range(len(cells))]
        return wanted(slots, cells, await rig.owner.write(slots, cells))

    async def write_all() -> list[list[Wanted]]:
        return await asyncio.gather(*(write(writer) for writer in range(12)))

    peer = rig.peer("beside")
    theirs = [
        peer.call.remote("write", [str(n) for n in range(31)], cells_of(100 + writer)) for writer in range(4)
    ]
    for _ in range(8):
        there = rig.loop.run(write_all())
        for writer, of_writer in enumerate(there):
            assert same(rig.loop.run(rig.owner.read(of_writer)), cells_of(writer))
        rig.loop.run(rig.owner.erase([one for of_writer in there for one in of_writer]))
    for writer, locators in enumerate(ray.get(theirs, timeout=60)):
        cells = cells_of(100 + writer)
        of_peer = wanted([str(n) for n in range(31)], cells, locators)
        assert same(rig.loop.run(rig.owner.read(of_peer)), cells)
        rig.loop.run(rig.owner.erase(of_peer))


def test_torch_keeps_its_threads(rig: Rig) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        seen: list[int] = []

        def look() -> None:
            seen.append(torch.get_num_threads())

        there = written(rig.owner, MANY, rig.loop.run)
        look()
        rig.loop.run(rig.owner.read(there))
        look()
        rig.loop.run(rig.owner.erase(there))
        rig.loop.run(rig.owner.ping())
        look()
        assert seen == [3, 3, 3]
    finally:
        torch.set_num_threads(before)


def test_a_dead_producer_takes_with_it_what_the_backend_says(rig: Rig) -> None:
    from ratchet.data_plane.backends import CAPABILITIES

    peer = rig.peer("producer")
    pid = ray.get(peer.pid.remote(), timeout=60)
    cells: list[Cells] = [{"a": a_cell(1000), "b": a_cell(2 * MIB)}, {"a": a_cell(10)}]
    there = wanted(["0", "1"], cells, ray.get(peer.call.remote("write", ["0", "1"], cells), timeout=60))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    read = rig.loop.run(rig.owner.read(there))
    assert same(read, cells) if CAPABILITIES[rig.backend].survives_producer else read == [None, None]
    rig.loop.run(rig.owner.erase(there))


# --- parts that die: each has a TransferQueue of its own

VICTIMS = [
    ("simple", "tq-controller"),
    ("simple", "tq-storage-0"),
    ("mooncake_cpu", "tq-controller"),
    ("mooncake_cpu", "mooncake-master"),
    ("ray", "tq-controller"),
    ("ray", "tq-objects"),
]


@pytest.mark.chaos
@pytest.mark.parametrize(("backend", "role"), VICTIMS)
def test_a_killed_part_is_noticed_and_no_call_waits_for_it(cluster: None, backend: str, role: str) -> None:
    needs(backend)
    rig = Rig(backend)
    cells: list[Cells] = [{"a": a_cell(300_000, seed)} for seed in range(4)]
    there = written(rig.owner, cells, rig.loop.run)
    causes: list[str] = []
    noticed = threading.Event()
    rig.parts.watch(
        lambda: rig.loop.run(rig.owner.ping()), lambda cause: (causes.append(cause), noticed.set())
    )
    pids = rig.parts.pids()
    os.kill(pids[role], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(DataPlaneUnavailable):
        rig.loop.run(rig.owner.ping())
    read: list[Any] = []
    try:
        read = rig.loop.run(rig.owner.read(there))
    except DataPlaneUnavailable:
        pass
    assert all(one is None or same([one], [of_slot]) for one, of_slot in zip(read, cells, strict=False))
    many: list[Cells] = [{"a": a_cell(300_000, seed)} for seed in range(100)]  # on every unit
    rig.owner._names._ahead.clear()  # type: ignore[attr-defined]  # nobody has to be asked for those
    with pytest.raises(DataPlaneUnavailable):
        written(rig.owner, many, rig.loop.run)
    assert noticed.wait(SECONDS)
    assert time.monotonic() - began < 3 * SECONDS
    assert role in causes[0] or "TransferQueue" in causes[0]
    rig.end()


@pytest.mark.chaos
def test_a_killed_part_is_noticed_while_a_ping_of_it_hangs(cluster: None) -> None:
    rig = Rig("simple")
    pinging, noticed = threading.Event(), threading.Event()
    causes: list[str] = []

    def ping() -> None:
        pinging.set()
        assert noticed.wait(SECONDS)

    rig.parts.watch(ping, lambda cause: (causes.append(cause), noticed.set()))
    assert pinging.wait(SECONDS)
    os.kill(rig.parts.pids()["tq-storage-0"], signal.SIGKILL)
    assert noticed.wait(SECONDS)
    assert "tq-storage-0 is gone" in causes[0]
    rig.end()


@pytest.mark.chaos
def test_what_a_dead_owner_of_mooncakes_memory_held_reads_as_lost(cluster: None) -> None:
    needs("mooncake_cpu")
    parts = TransferQueueParts("mooncake_cpu", 1, ROOM)
    own, others = parts.start()
    made: Any = Peer
    owner = made.remote(own, "owner")
    owner_pid = ray.get(owner.pid.remote(), timeout=60)
    loop = Loop("consumer")
    storage: Any = loop.run(open_storage_of(others, "consumer"))
    there = written(storage, MANY, loop.run)
    assert same(loop.run(storage.read(there)), MANY)
    raw = loop.run(_opened(others))
    sample = torch.arange(2**18, dtype=torch.int32)
    raw.put(["sample"], [sample])
    assert torch.equal(raw.get(["sample"], [sample.shape], [sample.dtype])[0], sample)
    os.kill(owner_pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{owner_pid}").exists())
    try:
        read = loop.run(storage.read(there))
    except DataPlaneUnavailable:
        pass
    else:
        assert read == [None] * len(MANY)
    assert raw._store.get("sample") == b""  # the store itself: no bytes, and no error
    storage.close()
    parts.end()


async def _opened(connection: Connection) -> Any:
    """The library's client of Mooncake's store."""
    return open_client(connection, "raw").storage_manager.storage_client


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)
