"""Which points of a run count, after it went back."""

from ratchet.sinks.news import Course, News, Point, Restart


def point(incarnation: int, step: int, series: str = "step") -> Point:
    return Point(series, incarnation, step, 0.0, {})  # type: ignore[arg-type]


def chosen(*news: News, takes_back: bool) -> list[tuple[int, int]]:
    written, _ = Course().choose(news, takes_back=takes_back)
    return [(item.incarnation, item.step) for item in written if isinstance(item, Point)]


BACK = (point(1, 1), point(1, 2), point(1, 3), Restart(2, 1, 0.0), point(2, 2), point(2, 3), point(2, 4))


def test_a_sink_that_takes_back_gets_what_was_trained_again() -> None:
    assert chosen(*BACK, takes_back=True) == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)]


def test_a_sink_that_cannot_gets_every_step_once() -> None:
    assert chosen(*BACK, takes_back=False) == [(1, 1), (1, 2), (1, 3), (2, 4)]


def test_what_is_told_late_of_a_lost_life_does_not_count() -> None:
    late = (point(1, 1), Restart(2, 2, 0.0), point(1, 2), point(1, 3))
    assert chosen(*late, takes_back=True) == [(1, 1), (1, 2)]
    assert chosen(*late, takes_back=False) == [(1, 1), (1, 2)]


def test_steps_and_evaluations_are_counted_apart() -> None:
    mixed = (point(1, 5), point(1, 5, "evaluation"), point(1, 5, "evaluation"))
    assert len(chosen(*mixed, takes_back=False)) == 2


def test_a_course_survives_being_written_down() -> None:
    _, course = Course().choose(BACK, takes_back=False)
    assert Course.model_validate(course.model_dump(mode="json")) == course
