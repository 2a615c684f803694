"""Law 2, exactly-once prompts: whatever dies in between, trained, dropped and pending make up what was
drawn."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from ratchet.data_plane.backends import CAPABILITIES
from ratchet.data_plane.batch import Group
from ratchet.data_plane.calls import Desk, OwnersMemory
from ratchet.data_plane.errors import BadRequest, NotReady
from ratchet.data_plane.memory import MemoryStorage
from ratchet.data_plane.plane import StoragePlane
from tests.unit.data_plane.conftest import PARTITION, TASKS, Rig, a_group

DRAWN = 12
SEEDS_A_TEST = 20


class Died(Exception):
    """A process, at this point."""


@dataclass
class World:
    """What outlives processes: the journal, the trainer's receipts, the count of what was evicted."""

    rig: Rig
    chance: random.Random
    journal: dict[int, Group] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    receipts: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)

    def maybe_die(self) -> None:
        if self.chance.random() < 0.15:
            raise Died

    async def produce(self, keys: Sequence[int]) -> None:
        """Journal first, then the data plane; a dead producer's successor starts over."""
        for key in keys:
            self.maybe_die()
            self.journal.setdefault(key, a_group(key, f"by {self.chance.random()}"))
            self.maybe_die()
            await self.rig.another("producer").put(PARTITION, [self.journal[key]])

    async def consume(self, keys: Sequence[int], consumer: str) -> None:
        """Lease, fetch, train and keep the receipt (one step, as an optimizer step is), acknowledge."""
        wanted = [key for key in keys if key not in self.dropped]
        if not self.receipts.issuperset(wanted):
            batch = await self.rig.plane.lease(PARTITION, "train", consumer, wanted)
            self.maybe_die()
            groups = await self.rig.plane.get(batch)
            self.maybe_die()
            self.trained += [group.key for group in groups]
            self.receipts |= set(wanted)
        self.maybe_die()
        await self.rig.plane.ack(PARTITION, "train", consumer, wanted)
        await self.rig.plane.ack(PARTITION, "score", "scorer", wanted)

    async def lose_everything(self) -> None:
        """The data plane dies; its successor is empty, and refilled from the journal."""
        await self.rig.plane.clear(PARTITION)
        pending = [key for key in self.journal if key not in self.receipts | self.dropped]
        await self.rig.plane.put(PARTITION, [self.journal[key] for key in pending])

    async def evict(self, key: int) -> None:
        if key not in self.receipts and await self.rig.plane.evict(PARTITION, [key], "stale"):
            self.dropped.add(key)


async def live(work: Coroutine[Any, Any, None]) -> bool:
    """Whether it got through: it may die, or find that it came too early."""
    try:
        await work
    except (Died, NotReady):
        return False
    except BadRequest as error:
        if "leased to" in str(error) or "acked" in str(error):  # another one was faster
            return False
        raise
    return True


async def interleave(rig: Rig, seed: int) -> World:
    chance = random.Random(seed)
    world = World(rig, chance)
    batches = [list(range(start, start + 3)) for start in range(0, DRAWN, 3)]
    open_batches = list(batches)
    evictions = 2
    while open_batches:
        batch = chance.choice(open_batches)
        match chance.randrange(10):
            case 0 | 1 | 2 | 3:
                keys = [key for key in chance.sample(batch, k=2) if key not in world.dropped]
                await live(world.produce(keys))
            case 4 | 5 | 6 | 7:
                if await live(world.consume(batch, f"trainer-{batch[0]}")):
                    open_batches.remove(batch)
            case 8:
                await world.lose_everything()
            case _ if evictions:
                evictions -= 1
                await world.evict(chance.choice(batch))
    return world


async def audit(rig: Rig, seeds: Iterable[int]) -> None:
    for seed in seeds:
        world = await interleave(rig, seed)
        assert len(world.trained) == len(set(world.trained)), seed
        assert set(world.trained) | world.dropped == set(range(DRAWN)), seed
        assert not set(world.trained) & world.dropped, seed
        left = set(await rig.plane.list_groups(PARTITION))
        assert left <= world.dropped | world.receipts, seed
        await rig.plane.clear(PARTITION)
        assert await rig.is_empty()


@pytest.mark.parametrize("first", range(0, 200, SEEDS_A_TEST))
async def test_over_random_deaths_every_prompt_counts_once(rig: Rig, first: int) -> None:
    await audit(rig, range(first, first + SEEDS_A_TEST))


# --- all at once

TTL = 5.0


class Crowd:
    """Producers and consumers that run at once, each call of theirs taking turns with the others' as the seed
    says; the data plane is replaced under them, and groups are evicted."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = Rig("memory", MemoryStorage())
        self.journal: dict[int, Group] = {}
        self.trained: list[int] = []
        self.dropped: set[int] = set()
        self.in_hand: dict[int, int] = {}
        """Key -> live consumers that may train on it: nobody evicts those."""
        self.holders: dict[int, tuple[str, float]] = {}
        """Key -> who was given its lease last, and until when."""
        self.losses = 0
        self.refused = 0

    async def turn(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    def plane(self) -> StoragePlane:
        """As a process of its own has it: others come between any two of its steps."""
        rig = self.rig

        async def call(method: str, *arguments: Any) -> Any:
            await self.turn()
            answer = await rig.owner.call(method, *arguments)
            if method == "lease" and rig is self.rig:
                self.note_lease(*arguments[2:4])  # at once: an answer may be late
            await self.turn()
            return answer

        return StoragePlane(Desk(call), OwnersMemory(call), CAPABILITIES["memory"], "one-of-many")

    def note_lease(self, consumer: str, keys: Sequence[int]) -> None:
        now = self.rig.clock.now
        for key in keys:
            holder, until = self.holders.get(key, (consumer, 0.0))
            assert holder == consumer or until <= now, f"{key} is {holder}'s and {consumer}'s"
            self.holders[key] = (consumer, now + TTL)

    def maybe_die(self) -> None:
        if self.chance.random() < 0.15:
            raise Died

    async def produce(self, keys: Sequence[int], name: str) -> None:
        for key in keys:
            if key not in self.dropped:
                self.journal.setdefault(key, a_group(key, name))
                self.maybe_die()
                await self.plane().put(PARTITION, [self.journal[key]])

    async def consume(self, keys: Sequence[int], consumer: str) -> None:
        wanted = [key for key in keys if key not in self.dropped]
        for key in wanted:
            self.in_hand[key] = self.in_hand.get(key, 0) + 1
        try:
            await self._consume(wanted, consumer)
        finally:
            for key in wanted:
                self.in_hand[key] -= 1

    async def _consume(self, wanted: Sequence[int], consumer: str) -> None:
        plane = self.plane()
        if not set(self.trained).issuperset(wanted):
            batch = await plane.lease(PARTITION, "train", consumer, wanted, TTL)
            self.maybe_die()
            groups = await plane.get(batch)
            self.maybe_die()
            if not set(self.trained).issuperset(wanted):  # the receipt: kept in one step with the training
                self.trained += [group.key for group in groups]
        self.maybe_die()
        await plane.ack(PARTITION, "train", consumer, wanted)
        await plane.ack(PARTITION, "score", consumer, wanted)

    async def until_through(self, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
        for _ in range(500):
            if await live(attempt()):
                return
            self.refused += 1
            self.rig.clock.now += 1  # leases of the dead run out
            await self.turn()
        raise AssertionError("nobody gets any further")

    async def replace_the_plane(self) -> None:
        self.losses += 1
        rig = Rig("memory", MemoryStorage())
        await rig.plane.register_partition(PARTITION, TASKS)
        rig.clock.now = self.rig.clock.now
        self.rig, self.holders = rig, {}
        pending = set(self.journal) - set(self.trained) - self.dropped
        await self.plane().put(PARTITION, [self.journal[key] for key in sorted(pending)])

    async def disturb(self) -> None:
        for _ in range(3):
            for _ in range(self.chance.randrange(30)):
                await asyncio.sleep(0)
            await self.replace_the_plane()
            key = self.chance.randrange(DRAWN)
            if (
                not self.in_hand.get(key)
                and key not in self.trained
                and self.rig.ledger.evict(PARTITION, [key], "stale")
            ):
                self.dropped.add(key)

    async def live_through(self) -> None:
        await self.rig.plane.register_partition(PARTITION, TASKS)
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(self.produce, range(DRAWN), f"producer-{number}") for number in range(3)
        ]
        for start in range(0, DRAWN, 3):
            batch = range(start, start + 3)
            works += [partial(self.consume, batch, f"trainer-{number}") for number in range(2)]
        await asyncio.gather(self.disturb(), *(self.until_through(work) for work in works))


async def test_all_at_once_every_prompt_counts_once_and_no_lease_has_two_owners() -> None:
    losses = dropped = refused = 0
    for seed in range(100):
        crowd = Crowd(seed)
        await crowd.live_through()
        assert len(crowd.trained) == len(set(crowd.trained)), seed
        assert set(crowd.trained) | crowd.dropped == set(range(DRAWN)), seed
        assert not set(crowd.trained) & crowd.dropped, seed
        await crowd.rig.plane.clear(PARTITION)
        assert await crowd.rig.is_empty(), seed
        losses, dropped, refused = (
            losses + crowd.losses,
            dropped + len(crowd.dropped),
            refused + crowd.refused,
        )
    assert losses == 300
    assert min(dropped, refused) > 0  # or nothing was tried
