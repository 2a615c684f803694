"""What a list says beside the rows of runs: newest reward, newest incident, effective training time."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event

from ratchet.spec.control import RecordRequest, StateEntry
from ratchet.spec.state import RunPhase
from ratchet.store.standing import Standing, Standings, covered

BEGAN = 1_700_000_000.0


@pytest.fixture
def statements(on_record: Any) -> Iterator[list[str]]:
    told: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        told.append(statement)

    engine = on_record.store._engine
    event.listen(engine, "before_cursor_execute", note)
    yield told
    event.remove(engine, "before_cursor_execute", note)


def standing(on_record: Any, run: str, now: float = BEGAN + 1000.0) -> Standing:
    store = on_record.store
    return Standings(store).of([store.get_run(run)], now=now)[run]


def test_a_run_that_lost_nothing_used_all_its_time_from_its_first_weights_on(on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED, steps=4)  # 9 s, without a word about when it had weights
    assert standing(on_record, "r") == Standing(pytest.approx(0.8), None, None)
    on_record.restored("r", from_step=2, steps=1)  # at 200 s, back to the end of step 2 at 4 s
    seen = standing(on_record, "r")
    assert seen.reward_mean == pytest.approx(0.7)
    assert seen.ettr == pytest.approx(1.0 - 196.0 / 1000.0)


def test_incidents_cost_what_they_took_and_nothing_twice(on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=4)
    on_record.restored("r", from_step=2, steps=1)
    before = standing(on_record, "r")
    on_record.incident("r", 5)  # inside what the restore took back already: 5 to 10.5 s
    after = standing(on_record, "r")
    assert after.ettr == before.ettr
    assert after.incident is not None
    assert (after.incident.key, after.incident.data["lost"]) == ("incident/5", "generator")
    on_record.incident("r", 300)  # 300 to 600.5 s
    assert standing(on_record, "r").ettr == pytest.approx(1.0 - (196.0 + 300.5) / 1000.0)


def test_a_recovery_that_goes_on_costs_time_until_now(on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=4)
    on_record.restored("r", from_step=2, steps=1)
    entry = StateEntry(phase=RunPhase.RECOVERING, step=3)
    on_record.store.record(RecordRequest(run="r", incarnation=3, at=BEGAN + 300.0, entries=(entry,)))
    assert standing(on_record, "r", now=BEGAN + 400.0).ettr == pytest.approx(1.0 - (196.0 + 100.0) / 400.0)


def test_the_reward_of_a_head_that_just_went_back_is_of_the_life_that_trained_it(on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=4)
    on_record.restored("r", from_step=3, steps=0)
    assert standing(on_record, "r").reward_mean == pytest.approx(0.7)


def test_many_runs_take_as_many_statements_as_one(on_record: Any, statements: list[str]) -> None:
    store = on_record.store
    for number in range(6):
        on_record.run(f"r-{number}", RunPhase.RUNNING, steps=2)
        on_record.incident(f"r-{number}", 1)
    records = store.list_runs()
    statements.clear()
    found = Standings(store).of(records, now=BEGAN + 60.0)
    assert len(found) == 6
    assert len([one for one in statements if one.startswith("SELECT")]) == 2
    assert Standings(store).of([], now=0.0) == {}


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], 0.0),
        ([(2.0, 4.0), (3.0, 5.0)], 3.0),
        ([(-5.0, 1.0), (9.0, 99.0)], 2.0),
        ([(4.0, 3.0)], 0.0),
        ([(1.0, 8.0), (2.0, 3.0), (8.0, 9.0)], 8.0),
    ],
)
def test_intervals_are_counted_once(intervals: list[tuple[float, float]], expected: float) -> None:
    assert covered(intervals, 0.0, 10.0) == expected
