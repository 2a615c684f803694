"""What a run did, over HTTP: rollouts, metrics, checkpoints and evaluations."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from api.app import create_app
from ratchet.environments.registry import create_environment
from ratchet.journal.writer import JournalWriter
from ratchet.rollouts.group import PromptGroup, Sample
from ratchet.spec.home import Home
from ratchet.spec.ids import WeightVersion
from ratchet.spec.lineage_views import LineageView
from ratchet.spec.loading import spec_from_mapping
from ratchet.spec.rollout_views import RolloutPage, RolloutRecord
from ratchet.spec.state import RunPhase
from ratchet.spec.views import CheckpointList, EvaluationList, MetricList, StepList

BEFORE, AFTER = (WeightVersion(incarnation=1, step=step, digest="ab" * 16) for step in (0, 1))


@pytest_asyncio.fixture
async def api(home: Home) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(home)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def sample(seed: int) -> Sample:
    return Sample(
        tokens=np.array([55, seed], np.int32),
        logprobs=np.array([-0.5, -np.inf if seed == 1 else -0.25], np.float32),
        mask=np.ones(2, np.uint8),
        finish_reason="stop",
        text=f"{seed}\n",
        reward=float(seed),
        rewards={"exact": float(seed)},
        correct=seed == 1,
        seed=2**62 + seed,
    )


@pytest.fixture
def journal(home: Home, on_record: Any) -> Iterator[JournalWriter]:
    """Run `r` has trained 2 steps of 4 prompts; the journal holds 0 to 9 but for 2, which was given up."""
    on_record.run("r", RunPhase.RUNNING, steps=2)
    spec = spec_from_mapping(on_record.store.get_run("r").spec)
    environment = create_environment(spec.environment, spec.seed)
    writer = JournalWriter(home.run_folder("r") / "journal", "generator-0")
    writer.adopt(1)
    prompt = np.array([1, 2, 3], np.int32)
    for key in (0, 1, *range(3, 10)):
        problem = environment.train_problem(key).id if key != 9 else "of another version"
        writer.append([PromptGroup(key, 1, problem, prompt, BEFORE, AFTER, (sample(0), sample(1)))])
    writer.drop([2], "no room for a response")
    yield writer
    writer.close()


async def test_rollouts_are_paged_and_say_what_trained_on_them(
    api: httpx.AsyncClient, journal: JournalWriter, on_record: Any
) -> None:
    found, dropped, cursor = [], [], None
    while True:
        params = {"limit": 4} | ({"cursor": cursor} if cursor else {})
        answer = await api.get("/v1/runs/r/rollouts", params=params)
        page = RolloutPage.model_validate_json(answer.content)
        assert len(page.rollouts) + len(page.dropped) <= 4
        found += page.rollouts
        dropped += page.dropped
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [one.key for one in found] == [0, 1, *range(3, 10)]
    assert [(one.key, one.cause) for one in dropped] == [(2, "no room for a response")]
    assert [one.trained_at for one in found] == [1, 1, 1, 2, 2, 2, 2, None, None]
    assert [one.logprob_error for one in found] == [2e-6] * 7 + [None] * 2
    first = found[0]
    spec = spec_from_mapping(on_record.store.get_run("r").spec)
    assert first.prompt == create_environment(spec.environment, spec.seed).train_problem(0).prompt
    assert found[-1].prompt is None  # another problem than the environment has there now
    assert (first.version_start, first.version_end) == ("1.0.abababab", "1.1.abababab")
    assert [(one.text, one.reward, one.correct, one.seed) for one in first.samples] == [
        ("0\n", 0.0, False, 2**62),
        ("1\n", 1.0, True, 2**62 + 1),
    ]
    assert [one.logprob_mean for one in first.samples] == [-0.375, None]


async def test_rollouts_of_a_step_and_what_comes_later(
    api: httpx.AsyncClient, journal: JournalWriter
) -> None:
    async def keys(step: int) -> list[int]:
        answer = await api.get("/v1/runs/r/rollouts", params={"step": step})
        return [one.key for one in RolloutPage.model_validate_json(answer.content).rollouts]

    assert await keys(1) == [0, 1, 3]
    assert await keys(2) == [4, 5, 6, 7]
    assert (await api.get("/v1/runs/r/rollouts", params={"step": 9})).status_code == 404
    assert (await api.get("/v1/runs/r/rollouts/10")).status_code == 404
    group = PromptGroup(10, 1, "late", np.array([1], np.int32), BEFORE, BEFORE, (sample(0),))
    journal.append([group])
    record = RolloutRecord.model_validate_json((await api.get("/v1/runs/r/rollouts/10")).content)
    assert (record.prompt_tokens, record.raw[0].tokens) == ([1], [55, 0])
    assert (record.raw[0].logprobs, record.raw[0].mask) == ([-0.5, -0.25], [1, 1])


async def test_weights_tell_where_they_come_from_and_what_became_of_them(
    api: httpx.AsyncClient, on_record: Any
) -> None:
    on_record.run("r", RunPhase.COMPLETED, steps=4)
    on_record.restored("r", from_step=2, steps=1)

    async def lineage(**params: str | int) -> LineageView:
        answer = await api.get("/v1/runs/r/lineage", params=params)
        assert answer.status_code == 200, answer.text
        return LineageView.model_validate_json(answer.content)

    head = await lineage()
    assert (head.incarnation, head.step) == (2, 3)
    assert [life.incarnation for life in head.lives] == [2, 1]
    trained = [(one.after.incarnation, one.cursor_start, one.cursor_end) for one in head.training]
    assert sorted(trained) == [(1, 0, 8), (2, 8, 12)]
    assert (await lineage(step=2)).incarnation == 1
    assert [one.step for one in (await lineage(step=4, incarnation=1)).checkpoints] == [4]
    after = await lineage(step=2, direction="down")
    assert {life.incarnation for life in after.lives} == {1, 2}
    assert (await api.get("/v1/runs/r/lineage?incarnation=9")).status_code == 404
    assert (await api.get("/v1/runs/r/lineage/dot")).text.startswith("digraph")
    assert {event["eventType"] for event in (await api.get("/v1/runs/r/lineage/openlineage")).json()} == {
        "COMPLETE"
    }


async def test_a_run_without_a_journal_has_no_rollouts(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED)
    page = RolloutPage.model_validate_json((await api.get("/v1/runs/r/rollouts")).content)
    assert (page.rollouts, page.next_cursor) == ([], None)


async def test_metrics_are_columns_and_thinned(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED, steps=10)

    async def metrics(**params: Any) -> MetricList:
        answer = await api.get("/v1/runs/r/metrics", params=params)
        return MetricList.model_validate_json(answer.content)

    all_of_it = await metrics()
    assert all_of_it.steps == list(range(1, 11))
    assert {"reward_mean", "loss", "logprob_error", "tokens_per_second", "rollout_s"} <= set(all_of_it.names)
    assert set(all_of_it.series) == set(all_of_it.names)
    assert all_of_it.series["reward_mean"] == pytest.approx([0.4 + 0.1 * step for step in range(1, 11)])
    few = await metrics(name=["loss", "reward_mean"], points=4, since=1)
    assert (few.steps, set(few.series)) == ([4, 7, 10], {"loss", "reward_mean"})


async def test_steps_are_paged(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED, steps=5)
    seen, cursor = [], None
    for _ in range(3):
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = StepList.model_validate_json((await api.get("/v1/runs/r/steps", params=params)).content)
        seen.append([step.step for step in page.steps])
        cursor = page.next_cursor
    assert (seen, cursor) == ([[1, 2], [3, 4], [5]], None)


async def test_what_was_abandoned_is_listed_and_says_so(api: httpx.AsyncClient, on_record: Any) -> None:
    on_record.run("r", RunPhase.COMPLETED, steps=4)
    on_record.restored("r", from_step=2, steps=1)
    saved = CheckpointList.model_validate_json((await api.get("/v1/runs/r/checkpoints")).content)
    assert [(one.step, one.on_path) for one in saved.checkpoints] == [(4, False)]
    seen = EvaluationList.model_validate_json((await api.get("/v1/runs/r/evaluations")).content)
    assert [(one.step, one.on_path) for one in seen.evaluations] == [(0, True), (4, False)]
