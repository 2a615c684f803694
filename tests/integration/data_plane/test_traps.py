"""What loses, splits or stops samples in TransferQueue as it comes, next to the same through Ratchet.

Each test first sees the library do it: one that does not any more makes the test fail, and what Ratchet does
about it can then go. That a dead Mooncake segment reads as no bytes is in test_transfer_queue_storage.py.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import ray
import torch
from tensordict import TensorDict

from benchmarks.data_plane_cases import Case, prompt_groups
from ratchet.data_plane.batch import Group
from ratchet.data_plane.errors import DataPlaneUnavailable, NotReady
from ratchet.data_plane.transfer_queue import Connection
from ratchet.data_plane.transfer_queue.connection import open_client
from ratchet.data_plane.transfer_queue.library import transfer_queue
from ratchet.journal.reader import JournalIndex
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.columns import from_columns, to_columns
from tests.unit.data_plane.conftest import PARTITION, Rig, a_group, rigged
from workers.actors.data_plane import open_storage_of
from workers.actors.transfer_queue import TransferQueueParts

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
simple = pytest.mark.parametrize("rig", ["simple"], indirect=True)

# A worker of Ray cannot import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

STUCK = 8.0
"""Seconds after which a call of the library counts as one that does not end. Ratchet's end within 5."""
ROOM = 2**26


class Raw:
    """The library alone: a controller, a storage unit, and clients of its own kind."""

    def __init__(self, sampler: Any, polling: bool) -> None:
        from transfer_queue.controller import TransferQueueController
        from transfer_queue.storage.simple_storage import SimpleStorageUnit

        controller: Any = TransferQueueController
        unit: Any = SimpleStorageUnit
        self.controller = controller.options(num_cpus=0).remote(sampler=sampler, polling_mode=polling)
        self._unit = unit.options(num_cpus=0).remote({"num_data_storage_units": 1})
        told, stored = ray.get(
            [self.controller.get_zmq_server_info.remote(), self._unit.get_zmq_server_info.remote()],
            timeout=60,
        )
        self._connection = Connection("simple", told, {"zmq_info": {"unit": stored}})
        self._clients: list[Any] = []

    def client(self) -> Any:
        client = open_client(self._connection, f"client-{len(self._clients)}")
        self._clients.append(client)
        return client

    def end(self) -> None:
        for client in self._clients:
            client.close()
        for actor in (self.controller, self._unit):
            ray.kill(actor)


@pytest_asyncio.fixture
async def raw(cluster: None) -> AsyncIterator[Callable[..., Raw]]:
    threads = torch.get_num_threads()  # which its clients set
    made: list[Raw] = []

    def make(group_of: int = 0, polling: bool = True) -> Raw:
        library = transfer_queue()
        sampler = (
            library.GRPOGroupNSampler(n_samples_per_prompt=group_of)
            if group_of
            else library.SequentialSampler()
        )
        made.append(Raw(sampler, polling))
        return made[-1]

    yield make
    for each in made:
        each.end()
    torch.set_num_threads(threads)


def rows(*prompts: int) -> TensorDict:
    """A sample each, of these prompts."""
    return TensorDict({"prompt": torch.tensor(prompts).view(-1, 1)}, batch_size=len(prompts))


async def fetched(client: Any, batch_size: int) -> list[int]:
    """Prompts of the samples that the library hands out; none if it does not yet."""
    meta = await client.async_get_meta(["prompt"], batch_size, PARTITION, mode="fetch", task_name="train")
    if not meta.size:
        return []
    return [int(row) for row in (await client.async_get_data(meta))["prompt"].unbind()]


async def ends(within: float, work: Awaitable[object]) -> bool:
    try:
        await asyncio.wait_for(work, within)
    except TimeoutError:
        return False
    return True


async def killed(actor: Any) -> None:
    pid: int = await actor.__ray_call__.remote(_pid)
    process = psutil.Process(pid)
    process.kill()
    await asyncio.to_thread(psutil.wait_procs, [process], 10)


def _pid(_actor: Any) -> int:
    return os.getpid()


async def trained(rig: Rig, consumer: str, keys: Sequence[int]) -> list[int]:
    batch = await rig.plane.lease(PARTITION, "train", consumer, keys)
    return [group.key for group in await rig.plane.get(batch)]


@simple
async def test_a_tail_that_is_smaller_than_a_batch_is_handed_out(raw: Callable[..., Raw], rig: Rig) -> None:
    client = raw().client()
    await client.async_put(rows(*range(6)), partition_id=PARTITION)
    assert await fetched(client, 4) == [0, 1, 2, 3]
    assert [await fetched(client, 4) for _ in range(3)] == [[], [], []]  # 4 and 5, never

    await rig.plane.put(PARTITION, [a_group(key) for key in range(6)])
    assert await trained(rig, "a", [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert await trained(rig, "a", [4, 5]) == [4, 5]


@simple
async def test_producers_at_once_split_no_group(raw: Callable[..., Raw], rig: Rig) -> None:
    queue = raw(group_of=4)
    producers = [queue.client(), queue.client()]
    for _ in range(2):  # each puts two samples of its prompt at a time
        for prompt, producer in enumerate(producers):
            await producer.async_put(rows(prompt, prompt), partition_id=PARTITION)
    assert sorted(await fetched(producers[0], 4)) == [0, 0, 1, 1]  # a "group" of two prompts

    others = [rig.another("one"), rig.another("two")]
    groups = prompt_groups(Case("group", 8, 0))
    await asyncio.gather(*(others[group.key % 2].put(PARTITION, [to_columns(group)]) for group in groups))
    batch = await rig.plane.lease(PARTITION, "train", "a", range(8))
    for group, found in zip(groups, await rig.plane.get(batch), strict=True):
        samples = from_columns(found).samples
        assert [sample.text for sample in samples] == [sample.text for sample in group.samples]


@simple
async def test_who_waits_for_a_group_holds_nobody_up(raw: Callable[..., Raw], rig: Rig) -> None:
    queue = raw(polling=False)
    consumer, producer = queue.client(), queue.client()
    waiting = asyncio.create_task(consumer.async_get_meta(["prompt"], 4, PARTITION, task_name="train"))
    await asyncio.sleep(0.5)  # it has been asked
    assert not await ends(2.0, producer.async_put(rows(0, 1, 2, 3), partition_id=PARTITION))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    async def wait() -> list[int]:
        while True:
            try:
                return await trained(rig, "a", [0, 1])
            except NotReady:
                await asyncio.sleep(0.01)

    task = asyncio.create_task(wait())
    assert await ends(2.0, rig.another("one").put(PARTITION, [a_group(0), a_group(1)]))
    assert await asyncio.wait_for(task, 5.0) == [0, 1]


@simple
async def test_what_a_dead_consumer_had_is_handed_on(raw: Callable[..., Raw], rig: Rig) -> None:
    queue = raw()
    await queue.client().async_put(rows(0, 1), partition_id=PARTITION)
    assert await fetched(queue.client(), 2) == [0, 1]  # who then dies, before its optimizer step
    assert await fetched(queue.client(), 2) == []  # it counts as consumed

    await rig.plane.put(PARTITION, [a_group(0), a_group(1)])
    batch = await rig.plane.lease(PARTITION, "train", "dead", [0, 1], 5.0)
    await rig.plane.get(batch)
    rig.clock.now += 6.0
    assert await trained(rig, "alive", [0, 1]) == [0, 1]


@pytest.mark.chaos
async def test_no_call_waits_for_a_dead_controller(raw: Callable[..., Raw]) -> None:
    queue = raw()
    client = queue.client()
    await client.async_put(rows(0, 1), partition_id=PARTITION)
    await killed(queue.controller)
    waiting = asyncio.ensure_future(fetched(client, 2))
    assert not await ends(STUCK, waiting)

    parts = TransferQueueParts("simple", 1, ROOM)
    own, others = parts.start()
    storages = [await open_storage_of(connection, "test") for connection in (own, others)]
    try:
        async with rigged("simple", storages[1], storages[0]) as rig:
            await rig.plane.put(PARTITION, [a_group(0)])
            await killed(parts._actors["tq-controller"])
            with pytest.raises(DataPlaneUnavailable):
                await asyncio.wait_for(rig.plane.ping(), STUCK)
            many = [Group(key, {"a": a_group(key).columns["tokens"]}) for key in range(1, 3)]
            assert await ends(STUCK, rig.plane.put(PARTITION, many))  # rows are named ahead
            assert await trained(rig, "a", [0, 1, 2]) == [0, 1, 2]
            await rig.plane.evict(PARTITION, [0, 1, 2], "test")
    finally:
        for storage in storages:
            storage.close()
        parts.end()


OLDER, NEWER = {"a": 1, "b": 2}, {"c": 3, "d": 4}


@ray.remote(num_cpus=0, max_restarts=0)
class Library:
    """Its global state, which there is one of in a cluster."""

    def replaced_while_it_was_loaded(self, folder: str) -> dict[str, int] | str:
        """Two samples are saved, and loaded again while the folder is replaced by a later state, of two
        others: what the library then has, or why nothing."""
        import transfer_queue as library
        from omegaconf import OmegaConf
        from transfer_queue import interface

        library.init(OmegaConf.create({"controller": {"polling_mode": True}}, flags={"allow_objects": True}))
        try:
            older, newer = Path(folder) / "checkpoint", Path(folder) / "newer"
            for path, samples in ((older, OLDER), (newer, NEWER)):
                keys = list(samples)
                values = TensorDict({"value": torch.tensor([[each] for each in samples.values()])}, [2])
                library.kv_batch_put(keys=keys, partition_id=PARTITION, fields=values)
                library.save_checkpoint(path)
                library.kv_clear(keys=keys, partition_id=PARTITION)

            client: Any = interface._maybe_create_tq_client()
            load = client.load_storage_checkpoint

            def load_and_be_late(path: str) -> None:
                load(path)
                shutil.rmtree(older)
                newer.rename(older)

            client.load_storage_checkpoint = load_and_be_late
            library.load_checkpoint(older)
            keys = sorted(library.kv_list(partition_id=PARTITION)[PARTITION])
            got = library.kv_batch_get(keys=keys, partition_id=PARTITION)
            return {key: int(row) for key, row in zip(keys, got["value"].unbind(), strict=True)}
        except Exception as error:
            return str(error)
        finally:
            library.close()


@simple
async def test_what_a_plane_is_refilled_from_cannot_be_replaced_meanwhile(rig: Rig, tmp_path: Path) -> None:
    made: Any = Library
    library = made.remote()
    found = await asyncio.wait_for(library.replaced_while_it_was_loaded.remote(str(tmp_path)), 90)
    ray.kill(library)
    assert found not in (OLDER, NEWER)
    assert isinstance(found, dict) or "not found" in found.lower(), found

    folder = tmp_path / "journal"
    groups = prompt_groups(Case("group", 6, 0))
    zombie = JournalWriter(folder, "zombie")
    zombie.adopt(1)
    zombie.append(groups[:4])
    successor = JournalWriter(folder, "successor")
    successor.adopt(2)
    index = JournalIndex(folder)
    first = index.groups([0, 1])
    with pytest.raises(Exception, match=r"sealed|over"):
        zombie.append([*groups[4:], *groups[:4]])
    successor.append([groups[5], groups[4]])
    index.refresh()
    refill = {**first, **index.groups(range(2, 6))}
    await rig.plane.put(PARTITION, [to_columns(refill[key]) for key in sorted(refill)])
    got = await rig.plane.get(await rig.plane.lease(PARTITION, "train", "a", range(6)))
    for group, back in zip(groups, got, strict=True):
        assert [sample.text for sample in from_columns(back).samples] == [
            sample.text for sample in group.samples
        ]
    for writer in (zombie, successor):
        writer.close()
