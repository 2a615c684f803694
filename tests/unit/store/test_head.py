"""The head of a run follows its newest incarnation, and never slips back (law 13)."""

import pytest

from ratchet.spec import names
from ratchet.spec.faults import Conflict, Fault, FaultKind
from ratchet.spec.state import RunPhase

LOST = Fault(kind=FaultKind.CLUSTER_LOST, message="the head is gone")


def head(store, run="r"):
    record = store.get_run(run)
    return record.incarnation, record.phase.value, record.step


def test_the_head_follows_states_and_steps(store, told, run):
    store.record(told.record(told.restore(0), told.state("running")))
    store.record(told.record(told.step(1)))
    assert head(store) == (1, "running", 1)
    store.record(told.record(told.state("completed", 1), at=2000.0))
    record = store.get_run(run)
    assert (record.phase, record.ended_at, record.updated_at, record.fault) == (
        RunPhase.COMPLETED,
        2000.0,
        2000.0,
        None,
    )


def test_a_fault_ends_a_run_and_stays_readable(store, told, run):
    store.record(told.record(told.state("failed", 3, LOST)))
    assert store.get_run(run).fault == LOST


@pytest.mark.parametrize("final", ["completed", "stopped", "failed"])
def test_a_final_phase_stays(store, told, run, final):
    store.record(told.record(told.state(final, 4), at=100.0))
    store.record(told.record(told.state("running", 5), at=200.0))
    record = store.get_run(run)
    assert (record.phase, record.ended_at) == (RunPhase(final), 100.0)


def test_a_newer_incarnation_reopens_an_ended_run(store, told, run):
    store.record(told.record(told.restore(0), told.state("failed", 3, LOST)))
    store.register_run(told.register(incarnation=2, execution="wf-2"), at=5000.0, code={})
    record = store.get_run(run)
    assert (record.phase, record.fault, record.ended_at) == (RunPhase.STARTING, None, None)
    assert (record.incarnation, record.workflow_run_id, record.created_at) == (2, "wf-2", 10.5)
    store.record(told.record(told.restore(2, 2), told.state("running", 2), incarnation=2))
    assert head(store) == (2, "running", 2)


def test_an_old_incarnation_is_recorded_and_moves_nothing(store, told, run):
    store.record(told.record(told.restore(0), told.step(1), told.step(2), told.state("running", 2)))
    store.record(told.record(told.restore(1, 2), told.state("paused", 1), incarnation=2))
    zombie = told.record(told.step(3), told.state("failed", 3, LOST), told.event("late"), at=9000.0)
    store.record(zombie)
    assert head(store) == (2, "paused", 1)
    assert store.get_run(run).fault is None
    assert [s.step for s in store.steps(run)] == [1, 2, 3]
    assert [s.step for s in store.steps_on_path(run)] == [1]
    assert [e.key for e in store.events(run)] == ["late"]


def test_the_step_goes_back_when_an_incarnation_restores(store, told, run):
    store.record(told.record(told.restore(0), told.state("running"), *[told.step(n) for n in range(1, 8)]))
    store.record(told.record(told.event("lost"), incarnation=2))
    assert head(store) == (2, "running", 7)
    store.record(told.record(told.restore(4, 2), incarnation=2))
    assert head(store) == (2, "running", 4)


def test_late_news_does_not_undo_newer_news(store, told, run):
    early = told.record(told.state("running", 1), told.step(1), at=100.0)
    pause = told.record(told.state("paused", 1), at=101.0)
    step = told.record(told.step(2), at=102.0)
    for request in (step, pause, early, pause, step, early):
        store.record(request)
    assert head(store) == (1, "paused", 2)
    assert [s.step for s in store.steps(run)] == [1, 2]


def test_incarnations_only_rise(store, told, run):
    store.record(told.record(told.restore(0, 3), incarnation=3))
    with pytest.raises(Conflict, match="only rise"):
        store.register_run(told.register(incarnation=2), at=0.0, code={})
    assert [i.number for i in store.incarnations(run)] == [1, 3]


def test_what_comes_late_of_an_incarnation_that_died_in_its_restore_is_added_and_moves_nothing(
    store, told, run
):
    store.record(told.record(told.restore(0), told.step(1), told.state("running", 1)))
    store.record(told.record(told.restore(1, 3), told.state("running", 1), incarnation=3))
    before = head(store)
    late = told.record(told.state("recovering", 0), told.event("lost"), incarnation=2, at=9000.0)
    for _ in range(2):
        store.record(late)
    assert head(store) == before == (3, "running", 1)
    assert [i.number for i in store.incarnations(run)] == [1, 2, 3]
    assert [e.key for e in store.events(run)] == ["lost"]
    assert [s.step for s in store.steps_on_path(run)] == [1]


def test_registering_again_writes_once(store, told, run):
    first = store.get_run(run)
    store.register_run(told.register(), at=99.0, code={"ratchet": "later"})
    assert store.get_run(run) == first
    store.record(told.record(told.restore(0, 2), incarnation=2))
    head_before = store.get_run(run)
    store.register_run(told.register(), at=100.0, code={})  # a late attempt
    assert store.get_run(run) == head_before


def test_the_last_step_follows_the_newest_extension(store, told, run):
    first = told.record(told.extended("update/1", 60), at=100.0)
    second = told.record(told.extended("update/2", 80), at=101.0)
    for request in (second, first, second):
        store.record(request)
    assert store.get_run(run).max_num_steps == 80
    assert store.get_run(run).spec["grpo"]["max_num_steps"] == 40


def test_an_ended_run_is_reopened_with_more_steps_and_nothing_else(store, told, run):
    store.record(told.record(told.restore(0), told.state("completed", 40)))
    spec = told.spec
    longer = spec.model_copy(update={"grpo": spec.grpo.model_copy(update={"max_num_steps": 60})})
    again = told.register(incarnation=2, execution="wf-2").model_copy(update={"spec": longer})
    store.register_run(again, at=5000.0, code={})
    record = store.get_run(run)
    assert (record.phase, record.max_num_steps) == (RunPhase.STARTING, 60)
    wider = longer.model_copy(update={"seed": 8})
    with pytest.raises(Conflict, match="another spec"):
        store.register_run(again.model_copy(update={"spec": wider, "incarnation": 3}), at=0.0, code={})


def test_incidents_are_told_oldest_first(store, told, run):
    for number in (3, 1, 2):
        entry = told.event(f"incident/{number}").model_copy(update={"topic": names.TOPIC_INCIDENT})
        store.record(told.record(entry, told.event(f"other/{number}"), at=100.0 + number))
    assert [event.key for event in store.incidents(run)] == ["incident/1", "incident/2", "incident/3"]
    assert [event.key for event in store.incidents(run, last=2)] == ["incident/2", "incident/3"]


def test_a_run_id_belongs_to_one_spec_and_one_workflow(store, told, run):
    other = told.spec.model_copy(update={"seed": 8})
    with pytest.raises(Conflict, match="another spec"):
        store.register_run(told.register().model_copy(update={"spec": other}), at=0.0, code={})
    with pytest.raises(Conflict, match="wf-9"):
        store.register_run(told.register(execution="wf-9"), at=0.0, code={})
