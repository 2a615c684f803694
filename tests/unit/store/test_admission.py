"""The queue for sessions: who gets a turn, in which order, once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from ratchet.spec.admission import AdmitRequest, Place
from ratchet.store import Store
from ratchet.store.admission import HEAD_START, Admissions


@pytest.fixture
def queue(store: Store) -> Admissions:
    return Admissions(store)


def request(run: str, since: float = 0.0, priority: int = 0, execution: str = "w", **more) -> AdmitRequest:
    return AdmitRequest(run=run, execution=execution, priority=priority, since=since, **more)


def holders(queue: Admissions) -> list[str]:
    return [record.run for record in queue.queue().holders]


def waiting(queue: Admissions) -> list[str]:
    return [record.run for record in queue.queue().waiting]


def test_without_a_limit_everybody_has_a_session(queue):
    assert [queue.ask(request(run), None).place for run in "abc"] == [None, None, None]
    assert holders(queue) == ["a", "b", "c"]


def test_beyond_the_limit_a_run_waits_and_knows_behind_whom(queue):
    assert [queue.ask(request(run, since), 2).place for since, run in enumerate("ab")] == [None, None]
    first, second = queue.ask(request("c", 2.0), 2).place, queue.ask(request("d", 3.0), 2).place
    assert first == Place(ahead=(), num_ahead=0, holders=("a", "b"), num_holders=2, priority=0, since=2.0)
    assert str(first) == "queued behind 2 runs: a, b, which have the sessions (priority 0)"
    assert str(second) == "queued behind 1 run: c (priority 0)"
    for number in range(10):
        last = queue.ask(request(f"x{number}", 4.0 + number), 2).place
    assert str(last) == "queued behind 11 runs: c, d, x0, x1, x2 and 6 more (priority 0)"


def test_turns_go_to_those_who_came_first(queue):
    queue.ask(request("holder"), 1)
    for since, run in ((3.0, "third"), (1.0, "first"), (2.0, "second")):
        queue.ask(request(run, since), 1)
    served = []
    for _ in range(3):
        queue.release(holders(queue)[0], "w")
        queue.give_turns(1)
        served += holders(queue)
    assert served == ["first", "second", "third"]


def test_priority_counts_like_a_head_start_and_nobody_waits_for_ever(queue):
    queue.ask(request("holder"), 1)
    queue.ask(request("plain", 0.0), 1)
    queue.ask(request("urgent", 10.0, priority=1), 1)
    queue.ask(request("late and urgent", HEAD_START + 1.0, priority=1), 1)
    queue.ask(request("modest", 0.0, priority=-1), 1)
    assert waiting(queue) == ["urgent", "plain", "late and urgent", "modest"]


def test_who_asks_again_keeps_its_place_and_its_turn(queue):
    for since, run in enumerate("abc"):
        queue.ask(request(run, since), 1)
    assert queue.ask(request("a", 50.0), 1).place is None
    place = queue.ask(request("b", 50.0), 1).place
    assert place is not None
    assert (place.num_ahead, place.since) == (0, 1.0)
    assert (holders(queue), waiting(queue)) == (["a"], ["b", "c"])


def test_a_run_that_is_begun_again_queues_anew(queue):
    for since, run in enumerate("abc"):
        queue.ask(request(run, since), 1)
    place = queue.ask(request("a", 9.0, execution="another"), 1).place
    assert place is not None
    assert (holders(queue), waiting(queue)) == (["b"], ["c", "a"])
    queue.release("a", "w")  # its old workflow, late
    assert waiting(queue) == ["c", "a"]


def test_a_run_that_has_a_session_already_is_admitted_past_the_limit(queue):
    queue.ask(request("a"), 1)
    assert queue.ask(request("b", holds=True), 1).place is None
    assert holders(queue) == ["a", "b"]


def test_a_turn_is_told_until_it_was(queue):
    queue.ask(request("a"), 1)
    queue.ask(request("b", 1.0), 1)
    queue.ask(request("b", 1.0, waits=True), 1, ("w", "7"))
    queue.release("a", "w")
    (turn,) = queue.give_turns(1)
    assert (turn.run, turn.waiter_execution, turn.waiter_activity) == ("b", "w", "7")
    assert queue.give_turns(1) == [turn]  # whoever gave it died before telling
    queue.told(turn)
    assert queue.give_turns(1) == []
    assert holders(queue) == ["b"]


def test_who_comes_to_wait_after_its_place_was_left_gets_none(queue):
    queue.ask(request("a"), 1)
    queue.ask(request("b", 1.0), 1)
    queue.release("b", "w")
    assert queue.ask(request("b", 1.0, waits=True), 1, ("w", "7")).forgotten
    assert waiting(queue) == []


def test_who_waits_in_another_activity_by_now_is_told_there(queue):
    queue.ask(request("a"), 1)
    queue.ask(request("b", 1.0), 1)
    queue.ask(request("b", 1.0, waits=True), 1, ("w", "7"))
    queue.release("a", "w")
    (turn,) = queue.give_turns(1)
    assert queue.ask(request("b", 1.0, waits=True), 1, ("w", "9")).place is None  # that is the answer
    queue.told(turn)
    assert queue.give_turns(1) == []


def test_another_limit_holds_from_the_next_turn_on(queue):
    for since, run in enumerate("abcd"):
        queue.ask(request(run, since), 2)
    queue.give_turns(3)
    assert (holders(queue), waiting(queue)) == (["a", "b", "c"], ["d"])
    queue.release("a", "w")
    queue.give_turns(1)
    assert (holders(queue), waiting(queue)) == (["b", "c"], ["d"])
    queue.give_turns(None)
    assert waiting(queue) == []


def test_no_turn_is_given_twice_however_many_ask_at_once(url):
    store = Store(url)  # waits for locks as long as in production
    queue = Admissions(store)

    def life(number: int) -> None:
        run = f"r{number}"
        if queue.ask(request(run, float(number)), 3).place is None:
            assert len(queue.queue().holders) <= 3
            queue.release(run, "w")
            queue.give_turns(3)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(life, range(40)))
    for record in queue.queue().holders:
        queue.release(record.run, "w")
    while left := waiting(queue):
        queue.give_turns(3)
        assert holders(queue) == left[:3]
        for run in left[:3]:
            queue.release(run, "w")
    store.close()
