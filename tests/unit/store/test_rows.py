"""Rows hold what they were told, once; the same key never says two things."""

import math

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from ratchet.spec import names
from ratchet.spec.faults import Conflict
from ratchet.spec.run_spec import RunSpec
from ratchet.spec.state import RunPhase


def test_a_registered_run_reads_back_whole(store, told, run):
    record = store.get_run(run)
    assert RunSpec.model_validate(record.spec) == told.spec
    assert (record.recipe, record.seed, record.max_num_steps) == ("tiny-addition", 7, 40)
    assert (record.phase, record.step, record.incarnation) == (RunPhase.STARTING, 0, 1)
    assert (record.created_at, record.workflow_run_id, record.code) == (10.5, "wf-1", {"ratchet": "0.1.0"})
    assert [i.number for i in store.incarnations(run)] == [1]
    assert store.get_run("another") is None


def test_every_row_reads_back_what_was_told(store, told, run):
    store.record(
        told.record(
            told.restore(0),
            told.step(1, kl=0.0625),
            told.checkpoint(1),
            told.evaluation(1, 0.75),
            told.event("pause-1"),
            at=50.25,
        )
    )
    (incarnation,) = store.incarnations(run)
    assert (incarnation.restored_at, incarnation.restored_step, incarnation.restored_digest) == (
        50.25,
        0,
        "d0",
    )
    assert (incarnation.from_checkpoint, incarnation.model_digest) == (None, "base")
    assert (incarnation.parent_run, incarnation.parent_incarnation) == (None, None)
    (step,) = store.steps(run)
    assert (step.started_at, step.finished_at, step.version_digest) == (100.0, 160.125, "1-1")
    assert (step.cursor_start, step.cursor_end, step.num_tokens, step.num_samples) == (0, 4, 96, 32)
    assert (step.reward_mean, step.reward_std, step.accuracy) == (0.5, 0.25, 0.375)
    assert (step.loss, step.grad_norm, step.learning_rate, step.kl) == (0.1, 0.7, 5e-6, 0.0625)
    assert step.logprob_error is None
    assert step.metrics["entropy"] == 1.25
    assert (step.rollout_engine_s, step.train_engine_s, step.refit_engine_s) == (1.5, 2.5, 0.5)
    assert (step.rollout_submits, step.rollout_starts, step.train_submits) == (2, 1, 1)
    assert (step.rollout_incarnation, step.rollout_step, step.rollout_digest) == (1, 0, "1-0")
    assert step.dropped == []
    (checkpoint,) = store.checkpoints(run)
    assert (checkpoint.path, checkpoint.digest, checkpoint.num_bytes) == (
        "/artifacts/1-1",
        "sha",
        5_000_000_000,
    )
    assert (checkpoint.committed_at, checkpoint.submits, checkpoint.starts) == (50.25, 3, 1)
    (evaluation,) = store.evaluations(run)
    assert (evaluation.accuracy, evaluation.num_problems) == (0.75, 128)
    (event,) = store.events(run)
    assert (event.topic, event.message, event.data) == ("update", "paused by ada", {"by": ["ada", 1]})


def test_recording_again_writes_once(store, told, run):
    request = told.record(
        told.state("running", 1),
        told.restore(0),
        told.step(1),
        told.checkpoint(1),
        told.evaluation(1),
        told.event("e"),
    )
    store.record(request)
    once = [read(run) for read in (store.get_run, store.incarnations, store.steps, store.checkpoints)]
    once += [store.evaluations(run), store.events(run)]
    store.record(request)
    # The same news in a later request is still the same news.
    store.record(request.model_copy(update={"entries": request.entries[1:]}))
    again = [read(run) for read in (store.get_run, store.incarnations, store.steps, store.checkpoints)]
    again += [store.evaluations(run), store.events(run)]
    assert again == once
    assert [len(rows) for rows in again[1:]] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["step", "checkpoint", "evaluation", "event", "restore"])
def test_another_row_under_the_same_key_is_a_conflict_and_changes_nothing(store, told, run, kind):
    first, second, column = {
        "step": (told.step(1), told.step(1, loss=9.0), "loss"),
        "checkpoint": (told.checkpoint(1), told.checkpoint(1, "other"), "digest"),
        "evaluation": (told.evaluation(1), told.evaluation(1, 0.25), "accuracy"),
        "event": (told.event("e"), told.event("e", "resumed"), "message"),
        "restore": (told.restore(0), told.restore(2), "restored_step"),
    }[kind]
    store.record(told.record(first))
    before = (store.get_run(run), store.incarnations(run), store.steps(run), store.checkpoints(run))
    with pytest.raises(Conflict, match=column):
        store.record(told.record(told.event("rides along"), second))
    assert (store.get_run(run), store.incarnations(run), store.steps(run), store.checkpoints(run)) == before
    assert "rides along" not in [event.key for event in store.events(run)]


def test_the_same_key_in_another_incarnation_is_another_row(store, told, run):
    store.record(told.record(told.restore(0), told.step(1)))
    store.record(told.record(told.restore(0, 2), told.step(1, 2, loss=9.0), incarnation=2))
    assert [(s.incarnation, s.loss) for s in store.steps(run)] == [(1, 0.1), (2, 9.0)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_an_incarnation_opened_when_its_first_record_says_whichever_comes_first(store, told, run, order):
    asked = [
        told.record(told.state("recovering"), incarnation=2, at=20.0),
        told.record(told.event("lost"), incarnation=2, at=20.5),
        told.record(told.restore(0, 2), incarnation=2, at=30.0),
    ]
    for index in order:
        store.record(asked[index])
    opened = store.incarnations(run)[1]
    assert (opened.opened_at, opened.restored_at) == (20.0, 30.0)


def test_a_step_that_went_wrong_is_recorded(store, told, run):
    request = told.record(told.step(1, loss=math.nan, grad_norm=math.inf))
    store.record(request)
    store.record(request)
    (step,) = store.steps(run)
    assert (step.loss, step.grad_norm) == (None, None)
    assert set(step.metrics) == {"learning_rate", "entropy"}


def test_a_message_may_hold_any_character(store, told, run):
    store.record(told.record(told.event("e", "a\0b 的 \N{SNOWMAN}")))
    store.record(told.record(told.event("e", "a\0b 的 \N{SNOWMAN}")))
    assert [event.message for event in store.events(run)] == ["a\N{REPLACEMENT CHARACTER}b 的 \N{SNOWMAN}"]


def test_an_unknown_run_is_a_conflict(store, told):
    with pytest.raises(Conflict, match="register"):
        store.record(told.record(told.step(1), run="nobody"))


FILLED = {
    "steps": "INSERT INTO steps SELECT * FROM steps",
    "events": "INSERT INTO events (run, incarnation, key, topic, message, data, at) "
    "SELECT run, incarnation, key, topic, message, data, at FROM events",
    "checkpoints": "INSERT INTO checkpoints SELECT * FROM checkpoints",
    "evaluations": "INSERT INTO evaluations SELECT * FROM evaluations",
}
REFUSED = [
    *((sql, "unique") for sql in FILLED.values()),
    *((f"UPDATE {table} SET run = run", "append-only") for table in FILLED),
    *((f"DELETE FROM {table}", "deleted only with the run") for table in FILLED),
    ("DELETE FROM incarnations", "deleted only with the run"),
    ("DELETE FROM runs", "not deleted"),
    ("UPDATE incarnations SET number = 3 WHERE number = 1", "restores once"),
    ("UPDATE incarnations SET opened_at = opened_at + 1 WHERE number = 1", "restores once"),
    ("UPDATE incarnations SET parent_run = 'another' WHERE number = 2", "restores once"),
    ("UPDATE incarnations SET restored_at = NULL WHERE number = 2", "restores once"),
    ("UPDATE incarnations SET restored_step = 3 WHERE number = 2", "restores once"),
    ("UPDATE runs SET step = -1", "check"),
    ("UPDATE runs SET incarnation = 1", "older incarnation"),
    ("UPDATE runs SET seed = 8", "does not change"),
    ("UPDATE runs SET phase = 'running'", "newer incarnation reopens"),
    (
        "INSERT INTO checkpoints SELECT run, incarnation, 9, version_digest, cursor, path, digest, '', "
        "num_bytes, num_files, write_s, submits, starts, committed_at FROM checkpoints",
        "manifest is committed",
    ),
]


@pytest.mark.parametrize(("wrong", "why"), REFUSED)
def test_the_database_itself_refuses_what_must_not_be(store, told, run, raw, wrong, why):
    store.record(told.record(told.step(1), told.event("e"), told.checkpoint(1), told.evaluation(1)))
    store.record(told.record(told.restore(1, 2, parent=1), told.state("failed"), incarnation=2))
    with pytest.raises(IntegrityError, match=f"(?i){why}"), raw.begin() as connection:
        connection.execute(text(wrong))


def test_batches_versions_and_incidents_have_their_own_names(store, told, run, raw):
    incident = told.event("i").model_copy(update={"topic": names.TOPIC_INCIDENT})
    store.record(told.record(told.restore(0), told.step(1), incident, told.event("e")))
    store.record(told.record(told.restore(1, 2, parent=1), incarnation=2))
    with raw.connect() as connection:
        batches = connection.execute(
            text("SELECT step, cursor_end, from_step, from_digest FROM rollout_batches")
        )
        assert batches.all() == [(1, 4, 0, "1-0")]
        versions = connection.execute(
            text(
                "SELECT incarnation, step, digest, made_by, parent_incarnation, parent_step "
                "FROM weight_versions ORDER BY incarnation, step"
            )
        )
        assert versions.all() == [
            (1, 0, "d0", "restore", None, None),
            (1, 1, "1-1", "train_step", 1, 0),
            (2, 1, "d1", "restore", 1, 1),
        ]
        assert connection.execute(text("SELECT key FROM incidents")).all() == [("i",)]


def test_runs_are_listed_newest_first_page_by_page(store, told):
    for n, at in enumerate([5.0, 3.0, 5.0, 1.0, 4.0]):
        store.register_run(told.register(f"r{n}"), at=at, code={})
    store.record(told.record(told.state("failed"), run="r2"))
    store.record(told.record(told.state("running"), run="r4"))
    newest_first = ["r2", "r0", "r4", "r1", "r3"]
    listed, before = [], None
    while page := store.list_runs(limit=2, before=before):
        assert len(page) <= 2
        listed += [run.id for run in page]
        before = page[-1].id
    assert listed == newest_first
    phases = [RunPhase.FAILED, RunPhase.RUNNING]
    assert [run.id for run in store.list_runs(phases=phases)] == ["r2", "r4"]
    assert [run.id for run in store.list_runs(phases=phases, before="r2")] == ["r4"]
    assert [run.id for run in store.list_runs(recipe="tiny-addition", before="r4")] == ["r1", "r3"]
    assert store.list_runs(recipe="another") == []
    with pytest.raises(Conflict, match="r9"):
        store.list_runs(before="r9")


def test_events_are_read_on_from_where_a_reader_was(store, told):
    for name in ("a", "b"):
        store.register_run(told.register(name), at=0.0, code={})
    for n in range(4):
        store.record(told.record(told.event(f"k{n}"), run="ab"[n % 2]))
    everything = store.events()
    assert [event.key for event in everything] == ["k0", "k1", "k2", "k3"]
    assert store.events(since=everything[1].id) == everything[2:]
    assert store.events(since=everything[1].id, limit=1) == everything[2:3]
    assert [event.key for event in store.events("b")] == ["k1", "k3"]


def test_steps_are_read_on_from_a_step(store, told, run):
    store.record(told.record(*[told.step(n) for n in range(1, 6)]))
    assert [s.step for s in store.steps(run, since=3)] == [4, 5]
    assert [s.step for s in store.steps_on_path(run, since=3)] == [4, 5]
