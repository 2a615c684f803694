"""What each sampler takes, waits for and throws away."""

import itertools
import random

import pytest

from ratchet.rollouts.samplers import Candidate, checked, create_sampler
from ratchet.spec.asynchronous import AsynchronousSpec
from ratchet.spec.faults import SpecError

WINDOW = 2


def sampler(name: str, **more):
    return create_sampler(AsynchronousSpec(sampler=name, refit="keep", max_staleness=WINDOW, **more))


def ready(key: int, start: int, arrived: float = 0.0) -> Candidate:
    return Candidate(key, start, arrived)


def sampling(key: int, start: int) -> Candidate:
    return Candidate(key, start, None)


def unknown(key: int) -> Candidate:
    return Candidate(key, None, None)


def test_in_order_takes_the_next_prompts_only() -> None:
    candidates = [ready(4, 3), sampling(5, 3), ready(6, 3), ready(7, 4), unknown(8)]
    assert sampler("in_order").select(candidates, 4, 3) == [4, 6]
    assert sampler("in_order").select([unknown(4), ready(5, 1)], 4, 1) == []


def test_weight_fifo_waits_for_the_oldest_weights() -> None:
    fifo = sampler("weight_fifo")
    assert fifo.select([ready(1, 2), sampling(2, 1), ready(3, 1), unknown(4)], 3, 3) == [3]
    assert fifo.select([ready(1, 2), ready(2, 1), ready(3, 1), unknown(4)], 3, 3) == [2, 3, 1]
    assert fifo.select([ready(1, 2), ready(2, 1), ready(3, 1)], 3, 1) == [2]


def test_ready_first_takes_them_as_they_came() -> None:
    candidates = [ready(1, 3, 30.0), ready(2, 3, 10.0), sampling(3, 3), ready(4, 3, 20.0)]
    assert sampler("ready_first").select(candidates, 4, 2) == [2, 4]


def test_windowed_prefers_the_newest_or_the_oldest_weights() -> None:
    candidates = [ready(1, 2), ready(2, 4), ready(3, 3), ready(4, 1)]
    assert sampler("windowed").select(candidates, 4, 2) == [2, 3]
    assert sampler("windowed", freshest_first=False).select(candidates, 4, 2) == [1, 3]


@pytest.mark.parametrize("name", ["ready_first", "windowed"])
def test_what_is_too_old_is_thrown_away_also_while_it_is_sampled(name: str) -> None:
    candidates = [ready(1, 1), sampling(2, 1), ready(3, 2), unknown(4)]
    assert sorted(sampler(name).evict(candidates, 4)) == [1, 2]
    assert list(sampler(name).select(candidates, 4, 4)) == [3]


@pytest.mark.parametrize("name", ["in_order", "weight_fifo", "ready_first", "windowed"])
def test_whatever_comes_only_finished_groups_are_taken_and_none_that_was_thrown_away(name: str) -> None:
    chance = random.Random(7)
    for _ in range(300):
        candidates = [
            chance.choice([ready(key, chance.randint(0, 6), chance.random()), sampling(key, 3), unknown(key)])
            for key in range(chance.randint(0, 12))
        ]
        step, wanted = chance.randint(0, 6), chance.randint(1, 6)
        evicted = set(sampler(name).evict(candidates, step))
        chosen = checked(sampler(name).select(candidates, step, wanted), candidates, wanted, name)
        assert not evicted & set(chosen)


def test_the_staleness_bound_holds_whatever_is_fast_or_slow() -> None:
    """A buffer of the window, refilled after every step: no group is trained more than the window late."""
    for name, seed in itertools.product(["in_order", "weight_fifo", "ready_first", "windowed"], range(20)):
        chance, made = random.Random(seed), sampler(name)
        prompts, cursor, over = 3, 0, set[int]()
        begun: dict[int, int] = {}
        arrived: dict[int, float] = {}
        for step in range(12):
            outstanding = [key for key in begun if key not in over]
            while len(outstanding) + prompts <= prompts * (WINDOW + 1):
                new = range(cursor, cursor + prompts)
                begun |= dict.fromkeys(new, step)
                outstanding += new
                cursor += prompts
            taken: list[int] = []
            for now in itertools.count():
                for key in begun:
                    if key not in arrived and chance.random() < 0.2:
                        arrived[key] = step + now / 1e6
                candidates = [Candidate(k, begun[k], arrived.get(k)) for k in sorted(begun) if k not in over]
                over |= set(made.evict(candidates, step))
                candidates = [each for each in candidates if each.key not in over]
                chosen = made.select(candidates, step, prompts - len(taken))
                assert all(step - begun[key] <= WINDOW for key in chosen), (name, seed)
                taken += chosen
                over |= set(chosen)
                if len(taken) == prompts:
                    break
                assert now < 10_000, (name, seed)


def test_a_choice_that_cannot_be_is_refused_by_name() -> None:
    candidates = [ready(1, 1), sampling(2, 1)]
    for wrong in ([2], [1, 1], [3]):
        with pytest.raises(SpecError, match=r"asynchronous\.sampler: mine:Sampler"):
            checked(wrong, candidates, 2, "mine:Sampler")


def test_an_unknown_sampler_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match="did you mean windowed"):
        create_sampler(AsynchronousSpec(sampler="window"))
