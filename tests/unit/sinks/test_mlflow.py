"""A real MLflow tracking store has every step once, whatever happened on the way."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.sinks.follow import Follow
from ratchet.sinks.mlflow import TAG, MlflowSink
from ratchet.sinks.news import Point
from ratchet.sinks.reading import Source
from ratchet.spec.reporting import MlflowSpec

pytest.importorskip("mlflow")
from mlflow.tracking import MlflowClient

Until = Callable[[Callable[[], Any]], Awaitable[None]]


class Tracked:
    """What a tracking store says."""

    def __init__(self, folder: Path) -> None:
        self.uri = folder.as_uri()
        self.client = MlflowClient(tracking_uri=self.uri)

    def runs(self) -> list[Any]:
        experiment = self.client.get_experiment_by_name("ratchet")
        return list(self.client.search_runs([experiment.experiment_id])) if experiment else []

    def curve(self, name: str = "loss") -> list[tuple[int, float]]:
        (run,) = self.runs()
        history = self.client.get_metric_history(run.info.run_id, name)
        return sorted((point.step, round(point.value, 4)) for point in history)


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracked:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return Tracked(tmp_path / "mlruns")


async def test_every_step_is_there_once_also_over_a_restore(
    runs: Any, tracked: Tracked, following: Any, until: Until
) -> None:
    runs.register("r", metrics={"mlflow": {"tracking_uri": tracked.uri}})
    runs.train("r", 1, 3)
    async with following():
        await until(lambda: (kept := runs.positions.get("r", "mlflow")) and kept.state["sink"])
    runs.restore("r", 2, 2)
    runs.train("r", 3, 5, incarnation=2)
    runs.end("r", incarnation=2)
    async with following():
        await until(lambda: runs.positions.get("r", "mlflow").ended)
    assert tracked.curve() == [(1, 1.01), (2, 1.02), (3, 1.03), (4, 2.04), (5, 2.05)]
    (run,) = tracked.runs()
    assert (run.data.tags[TAG], run.info.status) == ("r", "FINISHED")


def test_half_of_a_batch_is_completed_and_not_doubled(tracked: Tracked) -> None:
    """As after a kill in the middle of it: the store has some of the metrics, the position none."""
    points = [Point("step", 1, step, 100.0 + step, {"loss": step / 10, "kl": step / 5}) for step in (1, 2)]
    spec = MlflowSpec(tracking_uri=tracked.uri)
    first = MlflowSink(spec, "r", None)
    assert first.open({})
    first.write([Point("step", 1, 1, 101.0, {"loss": 0.1})])
    second = MlflowSink(spec, "r", None)
    assert second.open({})
    second.write(points)
    assert second.commit() == first.commit()
    assert tracked.curve("loss") == [(1, 0.1), (2, 0.2)]
    assert tracked.curve("kl") == [(1, 0.2), (2, 0.4)]


def test_a_run_that_ended_while_nobody_looked_is_ended_there_too(runs: Any, tracked: Tracked) -> None:
    spec = MlflowSpec(tracking_uri=tracked.uri)
    runs.register("r")
    runs.train("r", 1, 1)

    def follow() -> Follow:
        made = Follow("r", "mlflow", runs.positions, Source(runs.store), lambda: MlflowSink(spec, "r", None))
        made.begin()
        return made

    assert follow().advance()
    assert follow().end()
    (run,) = tracked.runs()
    assert (run.info.status, tracked.curve()) == ("FINISHED", [(1, 1.01)])
    assert runs.positions.get("r", "mlflow").ended
    tracked.client.delete_run(run.info.run_id)
    again = follow()
    assert not again.end()  # what it had is gone: it is told anew
    assert again.advance()
    assert again.end()
    assert tracked.curve() == [(1, 1.01)]


async def test_a_server_that_is_away_is_waited_for(
    runs: Any, tmp_path: Path, following: Any, until: Until
) -> None:
    runs.register("r", metrics={"mlflow": {"tracking_uri": "http://127.0.0.1:9"}, "tensorboard": {}})
    runs.train("r", 1, 2)
    async with following() as follower:
        await until(lambda: follower.failures["mlflow"])
        await until(lambda: follower.written()["tensorboard"] == 2)
        assert follower.written()["mlflow"] == 0
