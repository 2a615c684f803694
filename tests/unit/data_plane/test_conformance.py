"""What every data plane promises. A new backend joins by a line in BACKENDS."""

import threading
from collections.abc import Callable, Sequence

import pytest

from ratchet.data_plane.memory import MemoryDataPlane
from ratchet.data_plane.protocol import BadRequest, DataPlane, GroupTag, NotReady
from ratchet.rollouts.group import PromptGroup

BACKENDS: dict[str, Callable[[], DataPlane]] = {"memory": MemoryDataPlane}

TASKS = ("train", "score")


@pytest.fixture(params=BACKENDS)
def plane(request: pytest.FixtureRequest) -> DataPlane:
    plane = BACKENDS[request.param]()
    plane.register_partition("p", TASKS)
    return plane


def keys_of(groups: Sequence[PromptGroup]) -> list[int]:
    return [group.key for group in groups]


def text_of(plane: DataPlane, key: int) -> str:
    (group,) = plane.get("p", [key])
    return group.samples[0].text


def ack_everywhere(plane: DataPlane, keys: Sequence[int]) -> None:
    for task in TASKS:
        plane.ack("p", task, "a", keys)


def test_capabilities_and_ping(plane: DataPlane) -> None:
    plane.ping()
    assert plane.capabilities().backend in BACKENDS


# --- put


def test_what_was_put_is_there(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(7), make_group(3)])
    assert plane.list_groups("p") == [3, 7]
    (group,) = plane.get("p", [7])
    assert (group.problem_id, group.samples[1].tokens.tolist()) == ("problem 7", [7, 7])


def test_the_first_put_of_a_key_stays(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1, "first")])
    plane.put("p", [make_group(1, "second"), make_group(2, "first"), make_group(2, "second")])
    assert (text_of(plane, 1), text_of(plane, 2)) == ("first", "first")


def test_a_put_under_a_lease_changes_nothing(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1, "first")])
    plane.lease("p", "train", "a", [1])
    plane.put("p", [make_group(1, "second")])
    assert text_of(plane, 1) == "first"
    with pytest.raises(BadRequest):
        plane.lease("p", "train", "b", [1])


def test_a_put_after_the_last_ack_does_not_bring_it_back(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    ack_everywhere(plane, [1])
    plane.put("p", [make_group(1, "again")])
    assert (plane.list_groups("p"), plane.depth("p", "train")) == ([], 0)


def test_a_put_after_one_tasks_ack_is_not_new_to_it(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    plane.ack("p", "train", "a", [1])
    plane.put("p", [make_group(1, "again")])
    assert (plane.depth("p", "train"), plane.depth("p", "score")) == (0, 1)
    assert text_of(plane, 1) == "first"


# --- lease


def test_a_lease_comes_in_the_order_of_its_keys(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(key) for key in range(4)])
    assert keys_of(plane.lease("p", "train", "a", [2, 0, 3])) == [2, 0, 3]


def test_the_same_consumer_gets_the_same_rows_again(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1), make_group(2)])
    once = plane.lease("p", "train", "a", [1, 2])
    twice = plane.lease("p", "train", "a", [1, 2])
    assert keys_of(once) == keys_of(twice) == [1, 2]
    assert [group.samples[0].text for group in twice] == ["first", "first"]


def test_another_consumer_cannot_lease_what_is_leased(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1), make_group(2)])
    plane.lease("p", "train", "a", [1])
    with pytest.raises(BadRequest, match=r"group 1 .*'a'"):
        plane.lease("p", "train", "b", [2, 1])
    # All or none: 2 was not leased on the way.
    assert keys_of(plane.lease("p", "train", "c", [2])) == [2]


def test_tasks_lease_independently(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    plane.lease("p", "train", "a", [1])
    assert keys_of(plane.lease("p", "score", "b", [1])) == [1]


def test_missing_keys_are_named_and_nothing_is_leased(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    with pytest.raises(NotReady, match="41, 42"):
        plane.lease("p", "train", "a", [41, 1, 42])
    assert plane.depth("p", "train") == 1
    plane.put("p", [make_group(41), make_group(42)])
    assert keys_of(plane.lease("p", "train", "a", [41, 1, 42])) == [41, 1, 42]


def test_a_lease_of_what_was_acked_is_wrong_and_not_just_early(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1), make_group(2)])
    plane.ack("p", "train", "a", [1])
    ack_everywhere(plane, [2])
    for key in (1, 2):
        with pytest.raises(BadRequest, match=f"acked groups {key}"):
            plane.lease("p", "train", "a", [key])


def test_of_many_consumers_at_once_one_gets_the_lease(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(key) for key in range(50)])
    start = threading.Barrier(8)
    winners: list[tuple[int, str]] = []

    def consume(name: str) -> None:
        start.wait(10)
        for key in range(50):
            try:
                plane.lease("p", "train", name, [key])
            except BadRequest:
                continue
            winners.append((key, name))

    threads = [threading.Thread(target=consume, args=(f"consumer-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(key for key, _ in winners) == list(range(50))
    assert {tag.key: tag.leased_by["train"] for tag in plane.tags("p")} == dict(winners)


# --- ack and release


def test_acked_by_every_task_a_group_is_dropped(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    plane.lease("p", "train", "a", [1])
    plane.ack("p", "train", "a", [1])
    assert plane.list_groups("p") == [1]
    plane.ack("p", "score", "b", [1])
    assert plane.list_groups("p") == []


def test_an_ack_twice_is_one_ack(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1), make_group(2)])
    plane.lease("p", "train", "a", [1])
    for _ in range(2):
        plane.ack("p", "train", "a", [1])
    assert plane.list_groups("p") == [1, 2]
    assert (plane.depth("p", "train"), plane.depth("p", "score")) == (1, 2)
    for _ in range(2):
        ack_everywhere(plane, [1])
    assert plane.list_groups("p") == [2]


def test_an_ack_under_another_consumers_lease_is_refused_whole(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1), make_group(2)])
    plane.lease("p", "train", "a", [1])
    with pytest.raises(BadRequest):
        plane.ack("p", "train", "b", [2, 1])
    assert keys_of(plane.lease("p", "train", "a", [1, 2])) == [1, 2]


def test_an_ack_before_the_put_counts(plane: DataPlane, make_group) -> None:
    # A consumer may finish groups that a rebuilt data plane has not been refilled with yet.
    ack_everywhere(plane, [1])
    plane.put("p", [make_group(1)])
    assert plane.list_groups("p") == []


def test_a_released_lease_is_free_again(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    plane.lease("p", "train", "a", [1])
    with pytest.raises(BadRequest):
        plane.release("p", "train", "b", [1])
    for _ in range(2):
        plane.release("p", "train", "a", [1])
    assert plane.depth("p", "train") == 1
    assert keys_of(plane.lease("p", "train", "b", [1])) == [1]


# --- looking without touching


def test_looking_moves_no_cursor(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(2), make_group(1)])
    for _ in range(2):
        assert plane.list_groups("p") == [1, 2]
        assert plane.depth("p", "train") == 2
        assert keys_of(plane.get("p", [2, 1])) == [2, 1]
        assert [tag.key for tag in plane.tags("p")] == [1, 2]
    assert keys_of(plane.lease("p", "train", "a", [1, 2])) == [1, 2]


def test_get_names_missing_keys(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    with pytest.raises(NotReady, match="9"):
        plane.get("p", [1, 9])
    with pytest.raises(NotReady, match="9"):
        plane.tags("p", [1, 9])


def test_tags_tell_what_is_known_of_a_group(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1, incarnation=4), make_group(2)])
    plane.lease("p", "train", "a", [1])
    plane.ack("p", "score", "b", [1])
    assert plane.tags("p", [1]) == [
        GroupTag(
            key=1,
            incarnation=4,
            version="4.2.abababab",
            num_samples=2,
            num_tokens=3,
            reward_mean=1.5,
            leased_by={"train": "a"},
            acked=("score",),
        )
    ]


def test_depth_counts_what_a_task_has_not_begun(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(key) for key in range(3)])
    plane.lease("p", "train", "a", [0])
    plane.ack("p", "train", "a", [1])
    assert (plane.depth("p", "train"), plane.depth("p", "score")) == (1, 3)


# --- evict, clear, partitions


def test_evicting_drops_groups_whatever_their_leases(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1), make_group(2), make_group(3)])
    plane.lease("p", "train", "a", [1])
    plane.ack("p", "train", "a", [2])
    plane.evict("p", [1, 2, 77])
    assert plane.list_groups("p") == [3]
    plane.put("p", [make_group(1, "anew"), make_group(2, "anew")])
    assert plane.lease("p", "train", "b", [1])[0].samples[0].text == "anew"
    # Evicting forgets no ack: a task sees no group twice.
    with pytest.raises(BadRequest, match="acked"):
        plane.lease("p", "train", "b", [2])


def test_clearing_forgets_groups_leases_and_acks(plane: DataPlane, make_group) -> None:
    plane.register_partition("other", ["train"])
    plane.put("other", [make_group(1)])
    plane.put("p", [make_group(1), make_group(2)])
    plane.lease("p", "train", "a", [1])
    ack_everywhere(plane, [2])
    plane.clear("p")
    assert plane.list_groups("p") == []
    plane.put("p", [make_group(1), make_group(2)])
    assert keys_of(plane.lease("p", "train", "b", [1, 2])) == [1, 2]
    assert plane.list_groups("other") == [1]


def test_registering_again_keeps_everything(plane: DataPlane, make_group) -> None:
    plane.put("p", [make_group(1)])
    plane.register_partition("p", TASKS)
    assert plane.list_groups("p") == [1]
    with pytest.raises(BadRequest, match="exists with tasks"):
        plane.register_partition("p", ["train"])


def test_unknown_partitions_and_tasks_are_refused(plane: DataPlane, make_group) -> None:
    calls: list[Callable[[], object]] = [
        lambda: plane.put("q", [make_group(1)]),
        lambda: plane.get("q", []),
        lambda: plane.lease("q", "train", "a", []),
        lambda: plane.tags("q"),
        lambda: plane.list_groups("q"),
        lambda: plane.evict("q", []),
        lambda: plane.clear("q"),
        lambda: plane.lease("p", "tran", "a", []),
        lambda: plane.ack("p", "tran", "a", []),
        lambda: plane.release("p", "tran", "a", []),
        lambda: plane.depth("p", "tran"),
        lambda: plane.register_partition("empty", []),
    ]
    for call in calls:
        with pytest.raises(BadRequest):
            call()
