"""Leases on both databases: one holder at a time, whatever stands still or gets lost in between."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from ratchet.spec.faults import Unavailable
from ratchet.store import Contender, LeaseRecord, Leases, Store, Superseded

TTL_S = 10.0


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contender(store: Store, clock: Clock) -> Callable[[str], Contender]:
    return lambda name: Contender(Leases(store), "active", name, TTL_S, clock)


def test_the_first_one_holds_it_and_the_next_one_waits_until_it_falls_silent(contender, clock):
    a, b = contender("a"), contender("b")
    assert a.contend()
    assert a.held
    assert (a.held.epoch, a.held.holder, a.until) == (1, "a", 1009.0)
    assert not b.contend()
    clock.now += 9.0
    assert not b.contend()
    clock.now += 1.0
    assert b.contend()
    assert b.held
    assert b.held.epoch == 2
    with pytest.raises(Superseded):
        a.renew()


def test_a_renewal_makes_the_others_begin_to_wait_again(contender, clock):
    a, b = contender("a"), contender("b")
    assert a.contend()
    for _ in range(5):
        assert not b.contend()
        clock.now += 8.0
        a.renew()
        assert a.until == clock.now + 9.0
    assert not b.contend()
    clock.now += 9.9
    assert not b.contend()


def test_one_that_was_given_back_is_free_at_once(contender, clock):
    a, b = contender("a"), contender("b")
    assert a.contend()
    assert not b.contend()
    a.release()
    assert b.contend()
    a.release()
    b.renew()


def test_whose_time_is_over_does_not_renew_even_if_nobody_took_it(contender, clock):
    """What it had started may have been ended already."""
    a = contender("a")
    assert a.contend()
    clock.now += 9.0
    with pytest.raises(Superseded):
        a.renew()
    assert a.contend(), "nobody else is there: in another epoch it may"
    assert a.held
    assert a.held.epoch == 2


def test_the_age_is_the_databases(store):
    leases = Leases(store)
    taken = leases.take("active", "a", TTL_S, None)
    assert taken
    seen = leases.read("active")
    assert seen
    assert 0.0 <= seen.age_s < 5.0
    assert seen.renewed_at > 1.7e9


def test_only_one_of_those_who_saw_the_same_gets_it(store):
    leases = Leases(store)
    assert leases.take("active", "a", TTL_S, None)
    assert leases.take("active", "b", TTL_S, None) is None
    seen = leases.read("active")
    assert leases.take("active", "b", TTL_S, seen)
    assert leases.take("active", "c", TTL_S, seen) is None


@pytest.mark.parametrize("held_before", [False, True])
def test_of_many_at_the_same_moment_one_gets_it(store: Store, held_before: bool):
    leases = Leases(store)
    seen = leases.take("active", "before", TTL_S, None) if held_before else None
    together = Barrier(6)

    def take(name: str) -> LeaseRecord | None:
        together.wait(10)
        with suppress(Unavailable):  # SQLite lets a writer wait for a moment only
            return leases.take("active", name, TTL_S, seen)
        return None

    with ThreadPoolExecutor(6) as threads:
        taken = [lease for lease in threads.map(take, "abcdef") if lease]
    assert len(taken) == 1
    assert taken == [leases.read("active").model_copy(update={"age_s": taken[0].age_s})]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE leases SET epoch = 1",
        "UPDATE leases SET holder = 'c'",
        "DELETE FROM leases",
    ],
)
def test_the_database_refuses_what_would_let_two_hold_it(store: Store, raw: Engine, statement: str):
    leases = Leases(store)
    first = leases.take("active", "a", TTL_S, None)
    assert leases.take("active", "b", TTL_S, first)
    with pytest.raises(IntegrityError), raw.begin() as connection:
        connection.execute(text(statement))


class Interrupted(Leases):
    """Whose store lets time pass around what it does, and may lose the answer, or the question."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def read(self, name: str) -> LeaseRecord | None:
        found = super().read(name)
        self.after()
        return found

    def take(self, name: str, holder: str, ttl_s: float, seen: LeaseRecord | None) -> LeaseRecord | None:
        self.before()
        taken = super().take(name, holder, ttl_s, seen)
        self.after()
        return taken

    def renew(self, held: LeaseRecord) -> LeaseRecord | None:
        self.before()
        renewed = super().renew(held)
        self.after()
        return renewed


class Rivals:
    """Three machines whose clocks show different times and pass at almost the same rate. Each may be stopped
    anywhere: between two calls, or inside one, before or after the database did it."""

    names = itertools.count()
    rates = (1.0, 1.04, 0.96)

    def __init__(self, url: str) -> None:
        lease = f"lease-{next(self.names)}"
        self.store = Store(url)
        self.now = 0.0
        self.leases = [Interrupted(self.store) for _ in self.rates]
        self.contenders = [
            Contender(leases, lease, f"rival-{n}", TTL_S, self.clock(n))
            for n, leases in enumerate(self.leases)
        ]

    def clock(self, n: int) -> Callable[[], float]:
        return lambda: 5000.0 * n + self.now * self.rates[n]

    def holds(self, n: int) -> bool:
        return self.contenders[n].until > self.clock(n)()

    def passes(self, seconds: float, *, lost: bool = False) -> None:
        self.at_most_one_holds()
        self.now += seconds
        self.at_most_one_holds()
        if lost:
            raise Unavailable("nobody heard of it")

    def at_most_one_holds(self) -> None:
        assert sum(map(self.holds, range(3))) <= 1

    def act(self, n: int, before: float, after: float, lost: str) -> None:
        """What one does when it comes to it: renew what it holds, else try to get it, or give it back."""
        rival, leases = self.contenders[n], self.leases[n]
        leases.before = lambda: self.passes(before, lost=lost == "question")
        leases.after = lambda: self.passes(after, lost=lost == "answer")
        with suppress(Superseded, Unavailable):
            if lost == "interest":
                rival.release()
            elif self.holds(n):
                rival.renew()
            else:
                rival.contend()


SELDOM = st.sampled_from([0.0] * 10 + [4.0, 12.0])
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.0, 4.0, 6.0, 10.5]),
        st.sampled_from([0, 0, 0, 1, 1, 1, 2]),
        SELDOM,
        SELDOM,
        st.sampled_from([""] * 12 + ["question", "answer", "interest"]),
    ),
    min_size=60,
    max_size=90,
)
"""Seconds that pass, who acts then, how long it stands still before and after the database has done what
it asked for, and what is lost."""


def test_no_two_hold_it_whatever_is_stopped_or_lost_in_between(url: str) -> None:
    @settings(max_examples=12, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(STEPS)
    def holds_at_most_once(steps: list[tuple[float, int, float, float, str]]) -> None:
        rivals = Rivals(url)
        try:
            for seconds, *what in steps:
                rivals.passes(seconds)
                rivals.act(*what)
        finally:
            rivals.store.close()

    holds_at_most_once()
