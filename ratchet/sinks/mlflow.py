"""MLflow: one MLflow run a run, found by its tag. What was logged stays; before the first write after an
opening, the server is asked what it has."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ratchet.sinks.follow import SinkState
from ratchet.sinks.news import News, Point
from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError
from ratchet.spec.reporting import MlflowSpec

TAG = "ratchet.run"
MOST_AT_ONCE = 1000
"""Metrics in one request: the server's own limit."""


class MlflowSink:
    takes_back = False
    tells: tuple[type[News], ...] = (Point,)
    at_once = 40
    lasts_after_close = False
    given_up = 0

    def __init__(self, spec: MlflowSpec, run: str, token: str | None) -> None:
        """Raises SpecError without the package."""
        try:
            import mlflow  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise SpecError("metrics.mlflow needs MLflow: pip install 'ratchet[mlflow]'") from error
        self._spec, self._run, self._token = spec, run, token
        self._client: Any = None
        self._id = ""
        self._known: defaultdict[str, set[tuple[int, int]]] | None = None
        """(step, timestamp) by metric, of those asked for since the opening; None: nothing is in doubt."""

    def open(self, state: SinkState) -> bool:
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        with self._signed_in():
            self._client = MlflowClient(tracking_uri=self._spec.tracking_uri)
            self._id = self._found() or self._created()
        self._known = defaultdict(set)
        return state.get("run_id", self._id) == self._id

    def write(self, news: Sequence[News]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        points = [item for item in news if isinstance(item, Point)]
        metrics = [
            Metric(name, value, int(point.at * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        with self._signed_in():
            if self._known is not None:
                metrics = self._not_there_yet(metrics)
            for first in range(0, len(metrics), MOST_AT_ONCE):
                self._client.log_batch(self._id, metrics=metrics[first : first + MOST_AT_ONCE])
        self._known = None

    def commit(self) -> SinkState:
        return {"run_id": self._id}

    def close(self, *, ended: bool) -> SinkState:
        if ended:
            with self._signed_in():
                self._client.set_terminated(self._id)
        return self.commit()

    def _found(self) -> str | None:
        experiment = self._client.get_experiment_by_name(self._spec.experiment)
        if experiment is None:
            return None
        found = self._client.search_runs(
            [experiment.experiment_id], filter_string=f"tags.`{TAG}` = '{self._run}'", max_results=1
        )
        return found[0].info.run_id if found else None

    def _created(self) -> str:
        experiment = self._client.get_experiment_by_name(self._spec.experiment)
        id = experiment.experiment_id if experiment else self._client.create_experiment(self._spec.experiment)
        return self._client.create_run(id, run_name=self._run, tags={TAG: self._run}).info.run_id

    def _not_there_yet(self, metrics: list[Any]) -> list[Any]:
        """Those that an attempt before this one has not written already."""
        for name in {metric.key for metric in metrics}:
            for known in self._client.get_metric_history(self._id, name):
                self._known_of(name).add((known.step, known.timestamp))
        return [
            metric for metric in metrics if (metric.step, metric.timestamp) not in self._known_of(metric.key)
        ]

    def _known_of(self, name: str) -> set[tuple[int, int]]:
        assert self._known is not None
        return self._known[name]

    @contextmanager
    def _signed_in(self) -> Iterator[None]:
        """MLflow reads its credentials and patience from the environment: one call at a time, then."""
        wanted = {
            "MLFLOW_HTTP_REQUEST_TIMEOUT": f"{deadlines.SINK_CALL:.0f}",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_TRACKING_TOKEN": self._token,
            "MLFLOW_ALLOW_FILE_STORE": "true",  # it would rather have a database
        }
        before = {name: os.environ.get(name) for name in wanted}
        _set(wanted)
        try:
            yield
        finally:
            _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
