"""What every data plane promises. tests/integration/data_plane runs the same against those that need
processes."""

import asyncio
from collections.abc import Awaitable, Callable

import ml_dtypes
import numpy as np
import pytest

from ratchet.data_plane.backends import CAPABILITIES
from ratchet.data_plane.batch import BatchMeta, Group
from ratchet.data_plane.calls import Desk
from ratchet.data_plane.columns import Dense, Jagged, Objects
from ratchet.data_plane.errors import BadRequest, Full, NotReady
from ratchet.data_plane.plane import EAGER, StoragePlane
from ratchet.data_plane.storage import Wanted
from tests.unit.data_plane.conftest import PARTITION as P
from tests.unit.data_plane.conftest import TASKS, WRITE_WITHIN, Rig, a_group

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "bfloat16", "float8_e4m3fn"),
]


async def put(rig: Rig, *keys: int) -> None:
    await rig.plane.put(P, [a_group(key) for key in keys])


def dense(*values: float, dtype: str = "float32") -> Dense:
    return Dense(np.array(values, dtype))


async def test_it_says_what_it_can_do_and_answers(rig: Rig) -> None:
    await rig.plane.ping()
    assert await rig.plane.capabilities() == CAPABILITIES[rig.backend]


# --- put


async def test_what_was_put_is_there(rig: Rig) -> None:
    there = await rig.plane.put(P, [a_group(7, tags={"reward": 0.5}), a_group(3)])
    assert there.keys == [7, 3]
    assert there.tags("reward") == [0.5, None]
    assert await rig.plane.list_groups(P) == [3, 7]
    tokens = (await rig.fetch(7))["tokens"]
    assert isinstance(tokens, Jagged)
    assert [row.tolist() for row in tokens.rows()] == [[7], [7, 7]]


async def test_to_put_nothing_does_nothing(rig: Rig) -> None:
    assert (await rig.plane.put(P, [])).keys == []
    with pytest.raises(BadRequest, match="groups 4 have no columns"):
        await rig.plane.put(P, [Group(4, {})])


async def test_the_first_put_of_a_key_stays(rig: Rig) -> None:
    await rig.plane.put(P, [a_group(1, "first")])
    await rig.plane.put(P, [a_group(1, "second"), a_group(2, "first"), a_group(2, "second")])
    assert (await rig.text_of(1), await rig.text_of(2)) == ("first", "first")


@pytest.mark.parametrize("size", [8, EAGER])
async def test_of_two_producers_that_race_one_wins_whole(rig: Rig, size: int) -> None:
    def filled(value: int) -> Group:
        return Group(1, {name: Dense(np.full(size, value, np.uint8)) for name in ("a", "b")})

    planes = [rig.another(f"producer-{number}") for number in range(6)]
    await asyncio.gather(*(plane.put(P, [filled(number)]) for number, plane in enumerate(planes)))
    columns = await rig.fetch(1)
    seen = {
        int(value) for column in columns.values() if isinstance(column, Dense) for value in set(column.values)
    }
    assert len(seen) == 1


async def test_columns_are_added_later_and_the_first_of_each_stays(rig: Rig) -> None:
    await rig.plane.put(P, [Group(1, {"a": dense(1)}, {"x": 1})])
    await rig.plane.put(P, [Group(1, {"a": dense(2), "b": dense(3)}, {"x": 2, "y": 3})])
    columns = await rig.fetch(1)
    assert {
        name: column.values.tolist() for name, column in columns.items() if isinstance(column, Dense)
    } == {
        "a": [1],
        "b": [3],
    }
    (meta,) = (await rig.plane.describe(P, [1])).groups
    assert meta.tags == {"x": 1, "y": 3}


async def test_a_put_under_a_lease_changes_nothing(rig: Rig) -> None:
    await put(rig, 1)
    await rig.plane.lease(P, "train", "a", [1])
    await rig.plane.put(P, [a_group(1, "second")])
    assert await rig.text_of(1) == "first"
    with pytest.raises(BadRequest):
        await rig.plane.lease(P, "train", "b", [1])


async def test_a_put_after_the_last_ack_does_not_bring_it_back(rig: Rig) -> None:
    await put(rig, 1)
    await rig.ack_everywhere([1])
    assert (await rig.plane.put(P, [a_group(1, "again")])).keys == []
    assert (await rig.plane.list_groups(P), await rig.plane.depth(P, "train")) == ([], 0)


async def test_a_put_after_one_tasks_ack_is_not_new_to_it(rig: Rig) -> None:
    await put(rig, 1)
    await rig.plane.ack(P, "train", "a", [1])
    await rig.plane.put(P, [a_group(1, "again")])
    assert (await rig.plane.depth(P, "train"), await rig.plane.depth(P, "score")) == (0, 1)


# --- contents


@pytest.mark.parametrize("name", DTYPES)
async def test_every_dtype_comes_back_bit_for_bit(rig: Rig, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name) if name in ("bfloat16", "float8_e4m3fn") else name)
    raw = np.random.default_rng(0).integers(0, 2 if name == "bool" else 256, 6 * dtype.itemsize, np.uint8)
    values = raw.view(dtype).reshape(2, 3)
    await rig.plane.put(P, [Group(1, {"v": Dense(values)})])
    found = (await rig.fetch(1))["v"]
    assert isinstance(found, Dense)
    assert (found.values.dtype, found.values.shape) == (dtype, (2, 3))
    assert found.values.tobytes() == values.tobytes()


async def test_shapes_come_back(rig: Rig) -> None:
    experts = [np.arange(length * 6, dtype=np.int16).reshape(length, 3, 2) for length in (0, 4, 1)]
    wide = np.arange(24, dtype=np.int64).reshape(4, 6)
    columns = {
        "experts": Jagged.of(experts),
        "strided": Dense(wide[::2, 1:4]),
        "transposed": Dense(wide.T),
        "no-rows": Dense(np.empty((0, 5), np.float32)),
        "no-bytes": Jagged.of([np.empty(0, np.int32)] * 2),
        "large": Dense(np.random.default_rng(1).integers(0, 256, (2, 4 << 20), np.uint8)),
        "things": Objects((None, {}, {"a": [1, ("b", 2.5)]})),
    }
    await rig.plane.put(P, [Group(1, columns)])
    found = await rig.fetch(1)
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        other = found[name]
        if isinstance(column, Objects):
            assert isinstance(other, Objects)
            assert other.values == column.values
        else:
            assert isinstance(other, Dense | Jagged)
            assert other.values.dtype == column.values.dtype
            assert np.array_equal(other.values, column.values)
    rows = found["experts"]
    assert isinstance(rows, Jagged)
    assert [row.shape for row in rows.rows()] == [(0, 3, 2), (4, 3, 2), (1, 3, 2)]


async def test_only_the_columns_asked_for_are_fetched(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.zeros(2 * EAGER, np.uint8)
    await rig.plane.put(P, [Group(1, {"small": dense(1), "large": Dense(large)})])
    plane = rig.another("a-consumer")
    read = rig.storage.read
    asked: list[Wanted] = []

    async def seen(wanted: list[Wanted]) -> object:
        asked.extend(wanted)
        return await read(wanted)

    monkeypatch.setattr(rig.storage, "read", seen)
    (group,) = await plane.get(await plane.describe(P, [1]), ["small"])
    assert list(group.columns) == ["small"]
    assert [dict(each.columns) for each in asked] == [{"small": 4}]
    with pytest.raises(BadRequest, match=r"group 1 has no columns logprobs; it has large, small"):
        await plane.get(await plane.describe(P, [1]), ["logprobs"])


# --- lease


async def test_a_lease_comes_in_the_order_of_its_keys(rig: Rig) -> None:
    await put(rig, 0, 1, 2, 3)
    batch = await rig.plane.lease(P, "train", "a", [2, 0, 3])
    assert batch.keys == [2, 0, 3]
    assert [group.key for group in await rig.plane.get(batch)] == [2, 0, 3]


async def test_the_same_consumer_gets_the_same_rows_again(rig: Rig) -> None:
    await put(rig, 1, 2)
    for _ in range(2):
        assert (await rig.plane.lease(P, "train", "a", [1, 2])).keys == [1, 2]
    assert await rig.text_of(1) == "first"


async def test_another_consumer_cannot_lease_what_is_leased(rig: Rig) -> None:
    await put(rig, 1, 2)
    await rig.plane.lease(P, "train", "a", [1])
    with pytest.raises(BadRequest, match=r"group 1 .*'a'"):
        await rig.plane.lease(P, "train", "b", [2, 1])
    # All or none: 2 was not leased on the way.
    assert (await rig.plane.lease(P, "train", "c", [2])).keys == [2]


async def test_tasks_lease_independently(rig: Rig) -> None:
    await put(rig, 1)
    await rig.plane.lease(P, "train", "a", [1])
    assert (await rig.plane.lease(P, "score", "b", [1])).keys == [1]


async def test_an_expired_lease_is_handed_on_and_its_owner_refused(rig: Rig) -> None:
    await put(rig, 1)
    await rig.plane.lease(P, "train", "a", [1], ttl=10)
    rig.clock.now += 9
    with pytest.raises(BadRequest):
        await rig.plane.lease(P, "train", "b", [1], ttl=10)
    rig.clock.now += 2
    assert await rig.plane.depth(P, "train") == 1
    await rig.plane.lease(P, "train", "b", [1], ttl=10)
    with pytest.raises(BadRequest, match="leased to 'b'"):
        await rig.plane.ack(P, "train", "a", [1])


async def test_a_group_cannot_be_leased_twice_at_once(rig: Rig) -> None:
    await put(rig, 1, 2)
    with pytest.raises(BadRequest, match="not all different"):
        await rig.plane.lease(P, "train", "a", [1, 2, 1])
    with pytest.raises(BadRequest, match="not all different"):
        (await rig.plane.describe(P)).subset([1, 1])


async def test_missing_keys_are_named_and_nothing_is_leased(rig: Rig) -> None:
    await put(rig, 1)
    with pytest.raises(NotReady, match="41, 42"):
        await rig.plane.lease(P, "train", "a", [41, 1, 42])
    assert await rig.plane.depth(P, "train") == 1
    await put(rig, 41, 42)
    assert (await rig.plane.lease(P, "train", "a", [41, 1, 42])).keys == [41, 1, 42]


async def test_a_lease_of_what_was_acked_is_wrong_and_not_just_early(rig: Rig) -> None:
    await put(rig, 1, 2)
    await rig.plane.ack(P, "train", "a", [1])
    await rig.ack_everywhere([2])
    for key in (1, 2):
        with pytest.raises(BadRequest, match=f"acked groups {key}"):
            await rig.plane.lease(P, "train", "a", [key])


async def test_of_many_consumers_at_once_one_gets_the_lease(rig: Rig) -> None:
    await put(rig, *range(20))
    winners: list[tuple[int, str]] = []

    async def consume(name: str) -> None:
        for key in range(20):
            try:
                await rig.plane.lease(P, "train", name, [key])
            except BadRequest:
                continue
            winners.append((key, name))

    await asyncio.gather(*(consume(f"consumer-{number}") for number in range(8)))
    assert sorted(key for key, _ in winners) == list(range(20))
    leases = {group.key: group.leased_by["train"] for group in (await rig.plane.describe(P)).groups}
    assert leases == dict(winners)


# --- ack and release


async def test_acked_by_every_task_a_group_is_dropped_and_its_room_free(rig: Rig) -> None:
    await put(rig, 1)
    await rig.plane.lease(P, "train", "a", [1])
    await rig.plane.ack(P, "train", "a", [1])
    assert await rig.plane.list_groups(P) == [1]
    await rig.plane.ack(P, "score", "b", [1])
    assert await rig.plane.list_groups(P) == []
    assert await rig.is_empty()
    assert (await rig.plane.stats())[P]["bytes"] == 0


async def test_an_ack_twice_is_one_ack(rig: Rig) -> None:
    await put(rig, 1, 2)
    await rig.plane.lease(P, "train", "a", [1])
    for _ in range(2):
        await rig.plane.ack(P, "train", "a", [1])
    assert await rig.plane.list_groups(P) == [1, 2]
    assert (await rig.plane.depth(P, "train"), await rig.plane.depth(P, "score")) == (1, 2)


async def test_an_ack_under_another_consumers_lease_is_refused_whole(rig: Rig) -> None:
    await put(rig, 1, 2)
    await rig.plane.lease(P, "train", "a", [1])
    with pytest.raises(BadRequest):
        await rig.plane.ack(P, "train", "b", [2, 1])
    assert (await rig.plane.lease(P, "train", "a", [1, 2])).keys == [1, 2]


async def test_an_ack_before_the_put_counts(rig: Rig) -> None:
    # A consumer may finish groups that a rebuilt data plane has not been refilled with yet.
    await rig.ack_everywhere([1])
    await put(rig, 1)
    assert await rig.plane.list_groups(P) == []


async def test_a_released_lease_is_free_again(rig: Rig) -> None:
    await put(rig, 1)
    await rig.plane.lease(P, "train", "a", [1])
    with pytest.raises(BadRequest):
        await rig.plane.release(P, "train", "b", [1])
    for _ in range(2):
        await rig.plane.release(P, "train", "a", [1])
    assert await rig.plane.depth(P, "train") == 1
    assert (await rig.plane.lease(P, "train", "b", [1])).keys == [1]


# --- looking without touching


async def test_looking_moves_no_cursor(rig: Rig) -> None:
    await put(rig, 2, 1)
    for _ in range(2):
        assert await rig.plane.list_groups(P) == [1, 2]
        assert await rig.plane.depth(P, "train") == 2
        assert (await rig.plane.describe(P, [2, 1])).keys == [2, 1]
        await rig.plane.get(await rig.plane.describe(P))
    assert (await rig.plane.lease(P, "train", "a", [1, 2])).keys == [1, 2]


async def test_what_is_known_of_a_group_without_fetching_it(rig: Rig) -> None:
    await rig.plane.put(P, [a_group(1, tags={"incarnation": 4})])
    await rig.plane.lease(P, "train", "a", [1])
    await rig.plane.ack(P, "score", "b", [1])
    (meta,) = (await rig.plane.describe(P, [1])).groups
    assert (meta.key, meta.partition, meta.producer, dict(meta.tags)) == (
        1,
        P,
        "a-producer",
        {"incarnation": 4},
    )
    assert (dict(meta.leased_by), meta.acked) == ({"train": "a"}, ("score",))
    assert (meta.num_rows, meta.longest("tokens"), meta.num_bytes > 12) == (2, 2, True)
    with pytest.raises(NotReady, match="9"):
        await rig.plane.describe(P, [1, 9])


async def test_depth_counts_what_a_task_has_not_begun(rig: Rig) -> None:
    await put(rig, 0, 1, 2)
    await rig.plane.lease(P, "train", "a", [0])
    await rig.plane.ack(P, "train", "a", [1])
    assert (await rig.plane.depth(P, "train"), await rig.plane.depth(P, "score")) == (1, 3)


# --- what is lost


async def test_lost_bytes_are_named_and_can_be_put_again(rig: Rig) -> None:
    for key in (1, 2):
        await put(rig, key)
    await rig.lose(1)
    batch = await rig.plane.lease(P, "train", "a", [1, 2])
    with pytest.raises(NotReady, match="bytes of groups 1 "):
        await rig.plane.get(batch)
    assert await rig.plane.list_groups(P) == [2]
    assert (await rig.plane.stats())[P]["evicted"] == {"lost": 1}
    await put(rig, 1)
    assert await rig.text_of(1) == "first"


async def test_a_late_reader_of_what_is_gone_does_not_take_its_successor_along(rig: Rig) -> None:
    await put(rig, 1)
    old = await rig.plane.lease(P, "train", "a", [1])
    await rig.plane.evict(P, [1], "stale")
    await rig.owner.erase_doomed()
    await put(rig, 1)
    await rig.plane.lease(P, "train", "b", [1])
    with pytest.raises(NotReady):
        await rig.plane.get(old)
    assert await rig.plane.list_groups(P) == [1]
    assert (await rig.plane.stats())[P]["evicted"] == {"stale": 1}


async def test_a_batch_whose_groups_are_gone_raises(rig: Rig) -> None:
    await put(rig, 1)
    batch = await rig.plane.describe(P, [1])
    await rig.ack_everywhere([1])
    await rig.owner.erase_doomed()
    with pytest.raises(NotReady):
        await rig.plane.get(batch)


# --- evict, clear, partitions


async def test_evicting_drops_groups_whatever_their_leases_and_counts_them(rig: Rig) -> None:
    await put(rig, 1, 2, 3)
    await rig.plane.lease(P, "train", "a", [1])
    await rig.plane.ack(P, "train", "a", [2])
    assert await rig.plane.evict(P, [1, 2, 77], "stale") == 2
    assert await rig.plane.list_groups(P) == [3]
    assert (await rig.plane.stats())[P]["evicted"] == {"stale": 2}
    await rig.plane.put(P, [a_group(1, "anew"), a_group(2, "anew")])
    await rig.plane.lease(P, "train", "b", [1])
    assert await rig.text_of(1) == "anew"
    # Evicting forgets no ack: a task sees no group twice.
    with pytest.raises(BadRequest, match="acked"):
        await rig.plane.lease(P, "train", "b", [2])


async def test_clearing_forgets_groups_leases_and_acks_and_keeps_no_bytes(rig: Rig) -> None:
    await rig.plane.register_partition("other", ["train"])
    await rig.plane.put("other", [a_group(1)])
    await put(rig, 1, 2)
    await rig.plane.lease(P, "train", "a", [1])
    await rig.ack_everywhere([2])
    await rig.plane.clear(P)
    assert await rig.plane.list_groups(P) == []
    assert (await rig.plane.stats())[P]["bytes"] == 0
    await put(rig, 1, 2)
    assert (await rig.plane.lease(P, "train", "b", [1, 2])).keys == [1, 2]
    assert await rig.plane.list_groups("other") == [1]


@pytest.mark.parametrize("size", [8, 2 * EAGER])
async def test_a_write_that_was_under_way_when_it_was_cleared_is_refused(rig: Rig, size: int) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    storage = rig.storage

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(storage, name)

        async def write(self, slots: list[str], cells: list[object]) -> object:
            started.set()
            await go_on.wait()
            return await storage.write(slots, cells)  # type: ignore[arg-type]

    slow = StoragePlane(rig.desk, Slow(), CAPABILITIES[rig.backend], "slow")  # type: ignore[arg-type]
    late = asyncio.create_task(slow.put(P, [Group(1, {"a": Dense(np.zeros(size, np.uint8))})]))
    await started.wait()
    await rig.plane.clear(P)
    go_on.set()
    with pytest.raises(BadRequest, match="was cleared"):
        await late
    assert await rig.plane.list_groups(P) == []
    assert await rig.is_empty()


@pytest.mark.parametrize("size", [8, 2 * EAGER])
async def test_clearing_takes_along_what_a_producer_wrote_before_it_died(rig: Rig, size: int) -> None:
    async def die(*_: object) -> object:
        raise asyncio.CancelledError

    dead = rig.another("dead")
    dead._desk = Desk(rig.owner.call)
    dead._desk.enter = dead._desk.commit = dead._desk.abandon = die  # type: ignore[method-assign,assignment]
    with pytest.raises(asyncio.CancelledError):
        await dead.put(P, [Group(1, {"a": Dense(np.zeros(size, np.uint8))})])
    assert await rig.plane.list_groups(P) == []
    rig.clock.now += WRITE_WITHIN + 1
    await rig.plane.clear(P)
    assert await rig.is_empty()
    await put(rig, 1)
    assert await rig.text_of(1) == "first"


async def test_registering_again_keeps_everything(rig: Rig) -> None:
    await put(rig, 1)
    await rig.plane.register_partition(P, TASKS)
    assert await rig.plane.list_groups(P) == [1]
    with pytest.raises(BadRequest, match="exists with tasks"):
        await rig.plane.register_partition(P, ["train"])


async def test_unknown_partitions_and_tasks_are_refused(rig: Rig) -> None:
    plane = rig.plane
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: plane.put("q", [a_group(1)]),
        lambda: plane.lease("q", "train", "a", []),
        lambda: plane.describe("q"),
        lambda: plane.list_groups("q"),
        lambda: plane.evict("q", [], "x"),
        lambda: plane.clear("q"),
        lambda: plane.lease(P, "tran", "a", []),
        lambda: plane.ack(P, "tran", "a", []),
        lambda: plane.release(P, "tran", "a", []),
        lambda: plane.depth(P, "tran"),
        lambda: plane.register_partition("empty", []),
    ]
    for call in calls:
        with pytest.raises(BadRequest):
            await call()


# --- room


def megabytes(key: int, count: float) -> Group:
    return Group(key, {"a": Dense(np.full(int(count * 2**20), key, np.uint8))})


async def test_a_full_partition_makes_its_producers_wait_until_somebody_is_done(rig: Rig) -> None:
    await rig.plane.register_partition("small", ["train"], capacity=3 * 2**20)
    await rig.plane.put("small", [megabytes(1, 1), megabytes(2, 1)])
    waiting = asyncio.create_task(rig.plane.put("small", [megabytes(3, 1.5)]))
    async with asyncio.timeout(30):
        while not (await rig.plane.stats())["small"]["waiting"]:
            await asyncio.sleep(0)
        await rig.plane.ack("small", "train", "a", [1])
        await rig.owner.erase_doomed()
        assert (await waiting).keys == [3]
    stats = (await rig.plane.stats())["small"]
    assert (stats["room_waits"], stats["waiting"]) == (1, 0)
    assert await rig.plane.list_groups("small") == [2, 3]


async def test_a_partition_that_stays_full_says_who_holds_it(rig: Rig, no_patience: None) -> None:
    await rig.plane.register_partition("small", ["train"], capacity=2**20)
    await rig.plane.put("small", [megabytes(5, 0.9)])
    for size in (0.5, 0.15):  # one asks for room, the other is too small to ask
        with pytest.raises(Full, match=r"in 1 groups of which 5 is the oldest.*data_plane\.capacity_gib"):
            await rig.plane.put("small", [megabytes(6, size)])
    assert await rig.plane.list_groups("small") == [5]


async def test_what_never_fits_is_refused_at_once(rig: Rig) -> None:
    await rig.plane.register_partition("small", ["train"], capacity=2**20)
    with pytest.raises(BadRequest, match=r"4\.0 MiB at once do not fit.*raise data_plane\.capacity_gib"):
        await rig.plane.put("small", [megabytes(1, 4)])


async def test_the_room_of_a_producer_that_died_comes_back(rig: Rig) -> None:
    await rig.plane.register_partition("small", ["train"], capacity=2**20)

    async def die(*_: object) -> object:
        raise asyncio.CancelledError

    class Dead:
        write = die

    dead = StoragePlane(rig.desk, Dead(), CAPABILITIES[rig.backend], "dead")  # type: ignore[arg-type]
    dead._desk = Desk(rig.owner.call)
    dead._desk.abandon = die  # type: ignore[method-assign,assignment]
    with pytest.raises(asyncio.CancelledError):
        await dead.put("small", [megabytes(1, 0.9)])  # admitted: too large not to be
    assert (await rig.plane.stats())["small"]["writing"] == 1
    rig.clock.now += WRITE_WITHIN + 1
    await rig.owner.erase_doomed()
    assert (await rig.plane.put("small", [megabytes(1, 0.9)])).keys == [1]


# --- what can be seen


async def test_what_went_through_is_counted(rig: Rig) -> None:
    await put(rig, 1, 2, 2)
    await put(rig, 1)
    size = (await rig.plane.describe(P, [1])).groups[0].num_bytes
    await rig.plane.lease(P, "train", "a", [1])
    await rig.plane.lease(P, "train", "a", [1])
    await rig.plane.evict(P, [2], "stale")
    stats = (await rig.plane.stats())[P]
    assert (stats["groups_in"], stats["rows_in"], stats["bytes_in"]) == (2, 4, 2 * size)
    assert (stats["groups_out"], stats["rows_out"], stats["bytes_out"]) == (2, 4, 2 * size)
    assert (stats["groups"], stats["leases"], stats["depth"]) == (1, 1, {"train": 0, "score": 1})
    assert stats["evicted"] == {"stale": 1}


# --- batches


async def test_batches_are_cut_and_joined_without_effects(rig: Rig) -> None:
    await put(rig, 1, 2, 3)
    batch = await rig.plane.describe(P)
    first, rest = batch.slice(0, 1), batch.drop([1])
    assert (first.keys, rest.keys, batch.keys) == ([1], [2, 3], [1, 2, 3])
    assert rest.concat(first).keys == [2, 3, 1]
    assert batch.subset([3, 1]).keys == [3, 1]
    assert [half.keys for half in batch.partitioned(lambda group: group.key > 1)] == [[2, 3], [1]]
    assert batch.with_tags([{"x": key} for key in batch.keys]).tags("x") == [1, 2, 3]
    assert [group.key for group in await rig.plane.get(rest.concat(first))] == [2, 3, 1]
    wrong: list[Callable[[], BatchMeta]] = [
        lambda: batch.subset([4]),
        lambda: batch.concat(first),
        lambda: batch.concat(BatchMeta("other", ())),
        lambda: batch.with_tags([{}]),
    ]
    for call in wrong:
        with pytest.raises(BadRequest):
            call()
    assert await rig.plane.depth(P, "train") == 3
