"""The steps on the path to the head, against the definition taken word by word."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

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


# An incarnation is (whose checkpoint it grew from, and at which step; steps it trained after that).
Families = list[tuple[int, int, int]]


@st.composite
def families(draw) -> Families:
    """Incarnations, each grown from a step that any older one held, on the path then or not."""
    chosen: Families = [(0, 0, draw(st.integers(0, 6)))]
    for _ in range(draw(st.integers(0, 5))):
        parent = draw(st.integers(1, len(chosen)))
        _, grew_at, trained = chosen[parent - 1]
        chosen.append((parent, draw(st.integers(grew_at, grew_at + trained)), draw(st.integers(0, 4))))
    return chosen


def ancestry(chosen: Families) -> list[tuple[int, int]]:
    """Every incarnation by itself holds its parent's path up to where it grew, and what it trained."""
    paths: list[list[tuple[int, int]]] = [[]]
    for number, (parent, grew_at, trained) in enumerate(chosen, start=1):
        inherited = [(step, owner) for step, owner in paths[parent] if step <= grew_at]
        paths.append([*inherited, *((grew_at + n, number) for n in range(1, trained + 1))])
    return paths[-1]


_names = itertools.count()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=families())
def test_the_path_goes_back_to_whom_each_checkpoint_was_of(store, told, chosen):
    run = f"f{next(_names)}"
    store.register_run(told.register(run), at=0.0, code={})
    for number, (parent, grew_at, trained) in enumerate(chosen, start=1):
        steps = [told.step(grew_at + n, number) for n in range(1, trained + 1)]
        restore = told.restore(grew_at, number, parent=parent or None)
        store.record(told.record(restore, *steps, run=run, incarnation=number))
    assert [(row.step, row.incarnation) for row in store.steps_on_path(run)] == ancestry(chosen)
    newest = store.glance(store.get_run(run), incidents=1).last_step
    assert ([] if newest is None else [(newest.step, newest.incarnation)]) == ancestry(chosen)[-1:]


def test_steps_of_an_incarnation_that_grew_from_an_older_ones_checkpoint(store, told, run):
    store.record(told.record(told.restore(0), *[told.step(n) for n in range(1, 7)]))
    store.record(told.record(told.restore(4, 2, parent=1), told.step(5, 2), incarnation=2))
    assert [(s.step, s.incarnation) for s in store.steps_on_path(run)] == [
        (1, 1), (2, 1), (3, 1), (4, 1), (5, 2),
    ]  # fmt: skip
    # The checkpoint of step 5 was damaged, and the one of step 6 can be read again.
    store.record(told.record(told.restore(6, 3, parent=1), told.step(7, 3), incarnation=3))
    assert [(s.step, s.incarnation) for s in store.steps_on_path(run)] == [
        (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 3),
    ]  # fmt: skip


def test_checkpoints_and_evaluations_on_the_path(store, told, run):
    entries = [told.step(n) for n in range(1, 7)]
    saved = [told.checkpoint(n) for n in (2, 4, 6)]
    asked = [told.evaluation(n) for n in (0, 4, 6)]
    store.record(told.record(told.restore(0), *entries, *saved, *asked))
    store.record(told.record(told.restore(4, 2, parent=1), told.evaluation(4, 0.9), incarnation=2))
    assert [(row.incarnation, row.step) for row in store.checkpoints_on_path(run)] == [(1, 2), (1, 4)]
    assert [(row.incarnation, row.step) for row in store.evaluations_on_path(run)] == [(1, 0), (2, 4)]
    assert store.path(run) == {2: None, 1: 4}
    seen = store.glance(store.get_run(run), incidents=1)
    assert (seen.last_step.step, seen.last_checkpoint.step) == (4, 4)
    assert seen.evaluations == store.evaluations_on_path(run)


def test_one_look_is_one_transaction_of_six_statements_at_most(store, told, run):
    store.record(told.record(told.restore(0), told.step(1), told.checkpoint(1), told.event("e")))
    record = store.get_run(run)
    asked = []

    def note(*call):
        asked.append(call[2])

    event.listen(store._engine, "before_cursor_execute", note)
    store.glance(record, incidents=5)
    event.remove(store._engine, "before_cursor_execute", note)
    assert len([statement for statement in asked if "SELECT" in statement]) <= 6
    assert len([statement for statement in asked if "BEGIN" in statement]) <= 1


def test_a_fork_has_no_path_of_its_own_before_it_began(store, told, run):
    store.record(told.record(told.restore(8, 1, parent=3), told.step(9), told.step(10)))
    store.record(told.record(told.restore(8, 2, parent=3), told.step(9, 2), incarnation=2))
    assert [(s.step, s.incarnation) for s in store.steps_on_path(run)] == [(9, 2)]


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
