"""Where weights come from, and what became of them: against the tree walked step by step."""

import itertools
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from ratchet.store import Lineage


def keys(found):
    return [(one.run, one.incarnation, one.step) for one in found]


def test_up_goes_through_recoveries_and_forks_to_the_base_model(family):
    line = family.up("b", 2, 8)
    assert [(life.run, life.incarnation, life.first, life.last) for life in line.lives] == [
        ("b", 2, 7, 8),
        ("b", 1, 6, 7),
        ("a", 2, 4, 6),
        ("a", 1, 0, 4),
    ]
    assert keys(line.steps) == [
        ("b", 2, 8), ("b", 1, 7), ("a", 2, 5), ("a", 2, 6),
        ("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("a", 1, 4),
    ]  # fmt: skip
    assert sorted(p for s in line.steps for p in range(s.cursor_start, s.cursor_end)) == list(range(32))
    assert keys(line.checkpoints) == [("b", 2, 8), ("b", 1, 7), ("a", 2, 6), ("a", 1, 2), ("a", 1, 4)]
    assert keys(line.evaluations) == [("a", 1, 0)]
    base = line.lives[-1]
    assert (base.parent_run, base.model_digest, base.seed) == (None, "base", 7)
    assert (base.code, base.inputs) == (
        {"torch": "2"},
        {"environment": "arithmetic", "environment_digest": "e"},
    )
    assert (line.lives[0].code, line.lives[0].inputs) == ({"torch": "3"}, {})
    assert all(step.from_step == step.step - 1 for step in line.steps)


def test_down_finds_what_grew_from_weights(family):
    line = family.down("a", 1, 4)
    assert [(life.depth, life.run, life.incarnation, life.first) for life in line.lives] == [
        (0, "a", 1, 4),
        (1, "a", 2, 4),
        (2, "b", 1, 6),
        (3, "b", 2, 7),
    ]
    assert keys(line.steps) == [
        ("a", 1, 5), ("a", 1, 6), ("a", 2, 5), ("a", 2, 6), ("a", 2, 7), ("a", 2, 8),
        ("b", 1, 7), ("b", 1, 8), ("b", 2, 8),
    ]  # fmt: skip
    assert keys(line.checkpoints) == [("a", 1, 4), ("a", 2, 6), ("a", 2, 8), ("b", 1, 7), ("b", 2, 8)]
    assert keys(line.evaluations) == [("a", 1, 6)]
    assert [(life.run, life.incarnation) for life in family.down("a", 2, 7).lives] == [("a", 2)]


def test_down_from_a_prompt_finds_the_checkpoints_that_know_it(family):
    line = family.down_from_prompt("a", 18)  # of step 5, which two incarnations trained
    assert keys(line.checkpoints) == [("a", 2, 6), ("a", 2, 8), ("b", 1, 7), ("b", 2, 8)]
    assert keys(line.steps)[:3] == [("a", 1, 5), ("a", 1, 6), ("a", 2, 5)]
    assert family.down_from_prompt("a", 400).lives == []


def test_weights_that_nobody_knows_have_no_lineage(family):
    assert family.up("a", 7, 1).lives == family.up("x", 1, 1).lives == family.down("x", 1, 1).lives == []


def test_each_question_is_one_statement(family, store):
    asked = []
    event.listen(
        store._engine,
        "before_cursor_execute",
        lambda *call: asked.append(call[2]) if "SELECT" in call[2] else None,
    )
    for question in (
        lambda: family.up("b", 2, 8),
        lambda: family.down("a", 1, 0),
        lambda: family.down_from_prompt("a", 1),
    ):
        asked.clear()
        assert question().steps
        assert len(asked) == 1


@dataclass
class Grown:
    run: str
    number: int
    parent: "Grown | None"
    at: int
    trained: int


@st.composite
def trees(draw):
    """Lives of two runs, each grown from any step of any older life, or from the base model."""
    lives, numbers = [], {"x": 0, "y": 0}
    for _ in range(draw(st.integers(1, 7))):
        run = draw(st.sampled_from("xy"))
        numbers[run] += 1
        parent = draw(st.sampled_from([None, *lives]))
        at = draw(st.integers(parent.at, parent.at + parent.trained)) if parent else 0
        lives.append(Grown(run, numbers[run], parent, at, draw(st.integers(0, 4))))
    return lives


_names = itertools.count()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=trees())
def test_lineage_is_what_walking_step_by_step_finds(store, told, lives):
    prefix = f"{next(_names)}-"
    for life in lives:
        name, parent = prefix + life.run, life.parent
        if life.number == 1:
            store.register_run(told.register(name, execution=name), at=0.0, code={})
        grown = told.restore(
            life.at,
            life.number,
            parent and told.folder(prefix + parent.run, parent.number, life.at),
            parent=parent and parent.number,
        )
        steps = [told.step(life.at + n, life.number) for n in range(1, life.trained + 1)]
        store.record(told.record(grown, *steps, run=name, incarnation=life.number))

    def made_by(life, step):
        if life is None:
            return set()
        own = {(prefix + life.run, life.number, n) for n in range(life.at + 1, step + 1)}
        return own | made_by(life.parent, life.at)

    lineage = Lineage(store)
    ancestors = {}
    for life in lives:
        for step in range(life.at, life.at + life.trained + 1):
            key = (prefix + life.run, life.number, step)
            ancestors[key] = made_by(life, step)
            assert set(keys(lineage.up(*key).steps)) == ancestors[key]
    for key in [key for key in ancestors if key in ancestors[key]][:3]:
        later = {other for other in ancestors if key in ancestors[other] and other in ancestors[other]} - {
            key
        }
        assert set(keys(lineage.down(*key).steps)) == later
