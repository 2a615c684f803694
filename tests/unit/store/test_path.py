"""The steps on the path to the head, against the definition taken word by word."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# An incarnation is (step it restored at, or None if it never did; steps it trained after that).
Lives = list[tuple[int | None, int]]


@st.composite
def lives(draw) -> Lives:
    """Incarnations, each restored at a step on the path that was there before it."""
    chosen: Lives = [(0, draw(st.integers(0, 8)))]
    reached = chosen[0][1]
    for _ in range(draw(st.integers(0, 5))):
        restored = draw(st.none() | st.integers(0, reached))
        trained = 0 if restored is None else draw(st.integers(0, 6))
        reached = reached if restored is None else restored + trained
        chosen.append((restored, trained))
    return chosen


def oracle(chosen: Lives) -> list[tuple[int, int]]:
    """Live through it: an incarnation that restores forgets all that lies beyond, and trains on."""
    path: dict[int, int] = {}
    for number, (restored, trained) in enumerate(chosen, start=1):
        if restored is None:
            continue
        path = {step: owner for step, owner in path.items() if step <= restored}
        path |= dict.fromkeys(range(restored + 1, restored + trained + 1), number)
    return sorted(path.items())


_names = itertools.count()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=lives(), late=st.booleans())
def test_the_path_is_what_living_through_it_leaves(store, told, chosen, late):
    run = f"r{next(_names)}"
    store.register_run(told.register(run), at=0.0, code={})
    requests = []
    for number, (restored, trained) in enumerate(chosen, start=1):
        start = told.event("open") if restored is None else told.restore(restored, number)
        store.record(told.record(start, run=run, incarnation=number))
        steps = [told.step((restored or 0) + n, number) for n in range(1, trained + 1)]
        requests.append(told.record(*steps, run=run, incarnation=number))
        if not late:
            store.record(requests.pop())
    # Rows of dead incarnations may come in late, in any order: the path is the same.
    for request in reversed(requests):
        store.record(request)
    path = [(row.step, row.incarnation) for row in store.steps_on_path(run)]
    assert path == oracle(chosen)
    assert len(store.steps(run)) == sum(trained for _, trained in chosen)


def test_a_step_has_one_row_while_a_restore_is_still_unrecorded(store, told, run):
    store.record(told.record(told.restore(0), told.step(1), told.step(2), told.step(3)))
    store.record(told.record(told.step(2, 2), incarnation=2))
    assert [(s.step, s.incarnation) for s in store.steps_on_path(run)] == [(1, 1), (2, 2), (3, 1)]
    store.record(told.record(told.restore(1, 2), incarnation=2))
    assert [(s.step, s.incarnation) for s in store.steps_on_path(run)] == [(1, 1), (2, 2)]
