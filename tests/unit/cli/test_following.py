"""Following a run for hours: through restarts of the API, restored incarnations, and to the end."""

from typing import Any

import pytest

from ratchet.cli.client import Api
from ratchet.cli.following import follow
from ratchet.spec.faults import Unavailable
from ratchet.spec.home import Home
from ratchet.spec.state import RunPhase


@pytest.fixture
def api(home: Home) -> Any:
    with Api(home) as api:
        yield api


def test_a_restart_of_the_api_is_sat_out(api: Api, api_server: Any, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=2)
    sights = follow(api, "r", poll=0.02, patience=30.0)
    before = next(sights)
    assert [step.step for step in before.steps] == [1, 2]

    api_server.stop()
    away = next(sight for sight in sights if sight.away_s)
    assert away.steps == before.steps
    assert away.view == before.view

    api_server.start()
    back = next(sight for sight in sights if not sight.away_s)
    assert [step.step for step in back.steps] == [1, 2]


def test_patience_ends_and_says_that_the_run_goes_on(api: Api, api_server: Any, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING)
    sights = follow(api, "r", poll=0.02, patience=0.1)
    next(sights)
    api_server.stop()
    with pytest.raises(Unavailable, match="the run itself goes on"):
        list(sights)


def test_nothing_is_sat_out_before_the_first_answer(api: Api, api_server: Any) -> None:
    api_server.stop()
    with pytest.raises(Unavailable, match="cannot be reached"):
        next(follow(api, "r", patience=30.0))


def test_steps_that_a_restore_took_back_disappear(api: Api, api_server: Any, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=3)
    sights = follow(api, "r", poll=0.02)
    assert [(s.incarnation, s.step) for s in next(sights).steps] == [(1, 1), (1, 2), (1, 3)]
    on_record.restored("r", from_step=1, steps=1)
    assert [(s.incarnation, s.step) for s in next(sights).steps] == [(1, 1), (2, 2)]


def test_steps_are_read_anew_once_a_restore_is_on_record(api: Api, api_server: Any, on_record: Any) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=3)
    sights = follow(api, "r", poll=0.02)
    assert len(next(sights).steps) == 3
    on_record.recovering("r", at_step=3)  # it is not said yet where the run goes back to
    assert [(s.incarnation, s.step) for s in next(sights).steps] == [(1, 1), (1, 2), (1, 3)]
    on_record.restored("r", from_step=1, steps=3)  # faster than anybody looked
    assert [(s.incarnation, s.step) for s in next(sights).steps] == [(1, 1), (2, 2), (2, 3), (2, 4)]


def test_following_ends_with_the_run(api: Api, api_server: Any, on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED, steps=4)
    (last,) = follow(api, "r", poll=0.02)
    assert last.view.phase is RunPhase.COMPLETED
    assert len(last.steps) == 4


def test_time_left_is_the_median_step_times_the_steps_to_go(
    api: Api, api_server: Any, on_record: Any
) -> None:
    on_record.run("r", RunPhase.RUNNING, steps=3)
    sight = next(follow(api, "r"))
    assert sight.seconds_per_step == pytest.approx(2.0)
    assert sight.remaining_s == pytest.approx(2.0)  # step 4 of 4 is left
