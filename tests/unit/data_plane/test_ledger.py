"""The ledger: calls made twice, writes that come late, and any sequence of calls against a plain model."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ratchet.data_plane.batch import Group
from ratchet.data_plane.columns import Dense, Header
from ratchet.data_plane.errors import BadRequest, NotReady
from ratchet.data_plane.ledger import Ledger, Want, Written
from ratchet.data_plane.memory import MemoryStorage
from tests.unit.data_plane.conftest import PARTITION as P
from tests.unit.data_plane.conftest import TASKS, WRITE_WITHIN, Clock, Rig

Result = TypeVar("Result")
CELL = np.zeros(4, np.uint8)
HEADER = Header("dense", "uint8", (4,), (), 4)


def written(slot: str, column: str = "a") -> Written:
    return Written(slot, {column: HEADER}, None, {})


async def admitted(rig: Rig, key: int, column: str = "a") -> Written:
    """A column of four bytes, written and not committed."""
    (grant,) = rig.ledger.admit(P, "x", [Want(key, {column: 4})]).grants
    await rig.storage.write([grant.slot], [{column: CELL}])
    return written(grant.slot, column)


# --- twice, and late


async def test_a_commit_made_twice_takes_nothing_away(rig: Rig) -> None:
    late = await admitted(rig, 1)
    rig.ledger.commit(P, [late], [1])
    with pytest.raises(BadRequest, match="waits for no write"):
        rig.ledger.commit(P, [late], [1])
    await rig.owner.erase_doomed()
    assert list(await rig.fetch(1)) == ["a"]
    assert rig.ledger.stats()[P]["bytes"] == 4


async def test_an_entry_made_twice_takes_nothing_away(rig: Rig) -> None:
    await rig.storage.write(["mine", "late"], [{"a": CELL}, {"a": CELL}])
    rig.ledger.expect(P, "x", [(1, "mine", 4), (1, "late", 4)])
    for _ in range(2):
        for slot in ("mine", "late"):
            rig.ledger.enter(P, [(1, written(slot))])
    await rig.owner.erase_doomed()
    assert list(await rig.fetch(1)) == ["a"]
    assert rig.ledger.stats()[P]["bytes"] == 4


async def test_what_is_written_while_its_slot_is_erased_is_erased_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (grant,) = rig.ledger.admit(P, "x", [Want(1, {"a": 4})]).grants
    rig.clock.now += WRITE_WITHIN + 1
    erase = rig.owners.erase

    async def erase_and_be_late(wanted: Any) -> None:
        monkeypatch.undo()
        await erase(wanted)
        await rig.storage.write([grant.slot], [{"a": CELL}])
        with pytest.raises(BadRequest, match="waits for no write"):
            rig.ledger.commit(P, [written(grant.slot)], [1])

    monkeypatch.setattr(rig.owners, "erase", erase_and_be_late)
    await rig.owner.erase_doomed()
    assert await rig.is_empty()
    assert rig.ledger.stats()[P]["bytes"] == 0


async def test_one_late_write_refuses_the_whole_commit_and_keeps_nothing(rig: Rig) -> None:
    late = await admitted(rig, 1)
    rig.clock.now += WRITE_WITHIN + 1
    punctual = await admitted(rig, 2)
    with pytest.raises(BadRequest, match="more than 60 s"):
        rig.ledger.commit(P, [punctual, late], [1, 2])
    assert rig.ledger.list_groups(P) == []
    assert await rig.is_empty()


async def test_the_loser_of_two_commits_takes_no_room(rig: Rig) -> None:
    first, second = await admitted(rig, 1), await admitted(rig, 1)
    for each in (second, first):
        assert rig.ledger.commit(P, [each], [1]).keys == [1]
    await rig.owner.erase_doomed()
    assert await rig.owners.held() == 1
    assert rig.ledger.stats()[P]["bytes"] == 4


async def test_a_write_that_failed_gives_its_room_back_however_often_it_says_so(rig: Rig) -> None:
    slot = (await admitted(rig, 1)).slot
    for _ in range(2):
        rig.ledger.abandon(P, [slot])
    await rig.owner.erase_doomed()
    rig.ledger.abandon(P, [slot])
    stats = rig.ledger.stats()[P]
    assert [stats[name] for name in ("groups", "bytes", "writing", "erasing")] == [0, 0, 0, 0]


async def test_an_entry_that_comes_after_a_clear_is_refused_and_erased(rig: Rig) -> None:
    rig.ledger.expect(P, "x", [(1, "mine", 4)])
    await rig.storage.write(["mine"], [{"a": CELL}])
    await rig.plane.clear(P)
    with pytest.raises(BadRequest, match="it was cleared meanwhile"):
        rig.ledger.enter(P, [(1, written("mine"))])
    assert rig.ledger.list_groups(P) == []
    assert await rig.is_empty()


async def test_what_is_expected_takes_room(rig: Rig) -> None:
    await rig.plane.register_partition("small", TASKS, capacity=10)
    rig.ledger.expect("small", "x", [(1, "mine", 8)])
    for _ in range(2):
        assert "holds" in (rig.ledger.admit("small", "y", [Want(2, {"a": 4})]).blocked or "")
    rig.clock.now += WRITE_WITHIN + 1
    await rig.owner.erase_doomed()
    assert rig.ledger.admit("small", "y", [Want(2, {"a": 4})]).grants
    stats = rig.ledger.stats()["small"]
    assert (stats["room_waits"], stats["room_wait_s"], stats["waiting"]) == (1, WRITE_WITHIN + 1, 0)


def test_slots_of_two_ledgers_never_meet() -> None:
    slots: list[str] = []
    for _ in range(2):
        ledger = Ledger(WRITE_WITHIN, Clock())
        ledger.register_partition(P, TASKS, 0)
        slots += [grant.slot for grant in ledger.admit(P, "x", [Want(1, {"a": 1}), Want(2, {"a": 1})]).grants]
    assert len(set(slots)) == 4


def test_acks_of_a_run_of_groups_are_not_kept_one_by_one() -> None:
    ledger = Ledger(WRITE_WITHIN, Clock())
    ledger.register_partition(P, ["train"], 0)
    for key in reversed(range(100)):
        ledger.ack(P, "train", "a", [key])
    part = ledger._partitions[P]
    assert (part.finished_below, dict(part.acks)) == (100, {})
    with pytest.raises(BadRequest, match="acked groups 50"):
        ledger.lease(P, "train", "a", [50], 1)


# --- any sequence of calls

KEYS = st.integers(0, 4)
SOME = st.lists(KEYS, min_size=1, max_size=3, unique=True)
WHO = st.sampled_from(["a", "b"])
TASK = st.sampled_from(TASKS)
TTL = 10.0


class AgainstAPlainModel(RuleBasedStateMachine):
    """What the model says of every call is what the data plane does."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.rig = Rig("memory", MemoryStorage())
        self.run(self.rig.plane.register_partition(P, TASKS))
        self.puts = 0
        self.groups: dict[int, dict[str, int]] = {}
        self.leases: dict[tuple[str, int], tuple[str, float]] = {}
        self.acks: set[tuple[str, int]] = set()
        self.evicted = 0
        self.under_way: list[tuple[int, int, Written, float]] = []
        """Key, value, what was written, and until when it may be committed."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def owner(self, task: str, key: int) -> str | None:
        who, until = self.leases.get((task, key), ("", 0.0))
        return who if until > self.rig.clock.now else None

    def finished(self, key: int) -> bool:
        return all((task, key) in self.acks for task in TASKS)

    def foreign(self, task: str, who: str, keys: list[int]) -> bool:
        return any(self.owner(task, key) not in (None, who) for key in keys)

    def drop(self, key: int) -> None:
        self.groups.pop(key, None)
        for task in TASKS:
            self.leases.pop((task, key), None)

    @rule(keys=SOME, columns=st.sets(st.sampled_from("xyz"), min_size=1))
    def put(self, keys: list[int], columns: set[str]) -> None:
        self.puts += 1
        column = Dense(np.array([self.puts], np.int32))
        there = self.run(self.rig.plane.put(P, [Group(key, dict.fromkeys(columns, column)) for key in keys]))
        for key in keys:
            if not self.finished(key):
                self.groups[key] = dict.fromkeys(columns, self.puts) | self.groups.get(key, {})
        assert there.keys == [key for key in keys if key in self.groups]

    @rule(key=KEYS, column=st.sampled_from("xyz"))
    def begin_a_put(self, key: int, column: str) -> None:
        self.puts += 1
        grants = self.rig.ledger.admit(P, "slow", [Want(key, {column: 4})]).grants
        assert bool(grants) == (not self.finished(key) and column not in self.groups.get(key, {}))
        for grant in grants:
            cell = np.array([self.puts], np.int32).view(np.uint8)
            self.run(self.rig.storage.write([grant.slot], [{column: cell}]))
            one = Written(grant.slot, {column: Header("dense", "int32", (1,), (), 4)}, None, {})
            self.under_way.append((key, self.puts, one, self.rig.clock.now + WRITE_WITHIN))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def end_a_put(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.under_way) - 1))
        key, value, one, until = self.under_way.pop(at)
        try:
            self.rig.ledger.commit(P, [one], [key])
        except BadRequest:
            assert until <= self.rig.clock.now
            return
        assert until > self.rig.clock.now
        if not self.finished(key):
            (column,) = one.headers
            self.groups.setdefault(key, {}).setdefault(column, value)

    @rule(task=TASK, who=WHO, keys=SOME)
    def lease(self, task: str, who: str, keys: list[int]) -> None:
        acked = any((task, key) in self.acks for key in keys)
        missing = any(key not in self.groups for key in keys)
        try:
            batch = self.run(self.rig.plane.lease(P, task, who, keys, TTL))
        except NotReady:
            assert missing
            assert not acked
        except BadRequest:
            assert acked or self.foreign(task, who, keys)
        else:
            assert [acked, missing, self.foreign(task, who, keys)] == [False] * 3
            assert batch.keys == keys
            self.leases |= {(task, key): (who, self.rig.clock.now + TTL) for key in keys}

    @rule(task=TASK, who=WHO, keys=SOME, acks=st.booleans())
    def ack_or_release(self, task: str, who: str, keys: list[int], acks: bool) -> None:
        call = self.rig.plane.ack if acks else self.rig.plane.release
        try:
            self.run(call(P, task, who, keys))
        except BadRequest:
            assert self.foreign(task, who, keys)
            return
        assert not self.foreign(task, who, keys)
        for key in keys:
            self.leases.pop((task, key), None)
            if acks:
                self.acks.add((task, key))
                if self.finished(key):
                    self.drop(key)

    @rule(keys=SOME)
    def evict(self, keys: list[int]) -> None:
        there = [key for key in keys if key in self.groups]
        assert self.run(self.rig.plane.evict(P, keys, "stale")) == len(there)
        self.evicted += len(there)
        for key in there:
            self.drop(key)

    @rule()
    def clear(self) -> None:
        self.under_way = [(key, value, one, 0.0) for key, value, one, _ in self.under_way]
        self.run(self.rig.plane.clear(P))
        self.groups, self.leases, self.acks = {}, {}, set()

    @rule(seconds=st.sampled_from([TTL / 2, TTL, WRITE_WITHIN]))
    def time_passes(self, seconds: float) -> None:
        self.rig.clock.now += seconds

    @rule()
    def the_janitor_comes(self) -> None:
        self.run(self.rig.owner.erase_doomed())

    @invariant()
    def what_is_there_is_what_was_put_first(self) -> None:
        batch = self.run(self.rig.plane.describe(P))
        assert batch.keys == sorted(self.groups)
        found = {
            group.key: {
                name: int(column.values[0])
                for name, column in group.columns.items()
                if isinstance(column, Dense)
            }
            for group in self.run(self.rig.plane.get(batch))
        }
        assert found == self.groups

    @invariant()
    def leases_acks_and_counts_agree(self) -> None:
        for group in self.run(self.rig.plane.describe(P)).groups:
            owners = {task: who for task in TASKS if (who := self.owner(task, group.key))}
            assert group.leased_by == owners
            assert group.acked == tuple(task for task in TASKS if (task, group.key) in self.acks)
        for task in TASKS:
            idle = [key for key in self.groups if not self.owner(task, key) and (task, key) not in self.acks]
            assert self.run(self.rig.plane.depth(P, task)) == len(idle)
        assert sum(self.rig.ledger.stats()[P]["evicted"].values()) == self.evicted

    def teardown(self) -> None:
        self.run(self.rig.plane.clear(P))
        for _, _, one, _ in self.under_way:
            with pytest.raises(BadRequest):
                self.rig.ledger.commit(P, [one], [])
        assert self.run(self.rig.is_empty())
        assert self.rig.ledger.stats()[P]["bytes"] == 0
        self.loop.close()


TestAgainstAPlainModel = AgainstAPlainModel.TestCase
TestAgainstAPlainModel.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    phases=set(Phase) - {Phase.explain},  # it takes minutes
)
