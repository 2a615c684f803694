"""`/metrics`: what Prometheus reads of runs, however many there are."""

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event

from api.app import create_app
from api.metrics_page import MetricsPage
from api.settings import ApiSettings
from ratchet.spec.access import Role
from ratchet.spec.home import Home
from ratchet.spec.state import RunPhase
from ratchet.store import Tokens

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


@pytest.fixture
def page(on_record: Any) -> MetricsPage:
    return MetricsPage(on_record.store)


def test_runs_steps_and_what_was_lost(on_record: Any, page: MetricsPage) -> None:
    on_record.run("done", RunPhase.COMPLETED, steps=2)
    on_record.run("on", RunPhase.RUNNING, steps=3)
    on_record.incident("on", 1)
    found = samples(page.text().decode())
    assert of(found, "ratchet_runs", phase="running") == 1
    assert of(found, "ratchet_runs", phase="completed") == 1
    assert of(found, "ratchet_runs", phase="stalled") == 0
    assert of(found, "ratchet_run_step", run="on") == 3
    assert of(found, "ratchet_run_step", run="done") is None
    assert of(found, "ratchet_run_steps_wanted", run="on") == 4
    parts = {
        part: of(found, "ratchet_run_step_seconds", run="on", part=part) for part in ("rollout", "train")
    }
    assert parts == {"rollout": 0.5, "train": 0.4}
    assert of(found, "ratchet_run_step_seconds", run="on", part="other") == pytest.approx(1.0)
    assert of(found, "ratchet_run_staleness_steps", run="on") == 0
    assert of(found, "ratchet_incidents_total", lost="generator") == 1


def test_every_scrape_is_fresh_and_counters_only_rise(on_record: Any, page: MetricsPage) -> None:
    on_record.run("on", RunPhase.RUNNING, steps=1)
    assert of(samples(page.text().decode()), "ratchet_incidents_total", lost="generator") is None
    for number in range(1, 4):
        on_record.incident("on", number)
        on_record.incident("on", number)  # told again
        found = samples(page.text().decode())
        assert of(found, "ratchet_incidents_total", lost="generator") == number
    # Another process counts the same from the beginning.
    again = samples(MetricsPage(on_record.store).text().decode())
    assert of(again, "ratchet_incidents_total", lost="generator") == 3


def test_a_scrape_asks_the_same_few_questions_of_many_runs(on_record: Any, page: MetricsPage) -> None:
    def questions() -> list[str]:
        asked: list[str] = []
        engine = on_record.store._engine
        listen = lambda *arguments: asked.append(arguments[2])  # noqa: E731
        event.listen(engine, "before_cursor_execute", listen)
        page.text()
        event.remove(engine, "before_cursor_execute", listen)
        return asked

    on_record.run("r0", RunPhase.RUNNING, steps=2)
    page.text()
    few = questions()
    for number in range(1, 30):
        on_record.run(f"r{number}", RunPhase.RUNNING, steps=2)
    many = questions()
    assert len(many) <= len(few) + 1  # what the outbox was told since
    with on_record.store.reading() as session:
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {few[-1]}", _numbered(few[-1]))
        steps = " / ".join(str(row[-1]) for row in plan)
    assert "SCAN steps" not in steps, steps


def _numbered(statement: str) -> tuple[object, ...]:
    return tuple(1 for _ in range(statement.count("?")))


async def test_the_api_serves_it_and_beyond_loopback_only_to_those_with_a_token(
    on_record: Any, home: Home
) -> None:
    on_record.run("on", RunPhase.RUNNING, steps=1)
    _, token = Tokens(on_record.store).create("prometheus", Role.VIEWER, by="test", at=0.0)
    for settings, headers, status in (
        (ApiSettings(), {}, 200),
        (ApiSettings(wide=True), {}, 401),
        (ApiSettings(wide=True), {"Authorization": f"Bearer {token}"}, 200),
    ):
        app = create_app(home, settings)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                answer = await client.get("/metrics", headers=headers)
        assert answer.status_code == status
        if status == 200:
            assert answer.headers["content-type"].startswith("text/plain; version=")
            assert of(samples(answer.text), "ratchet_run_step", run="on") == 1
