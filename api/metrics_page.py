"""`/metrics` for Prometheus: the state of every run, read from the store at each scrape."""

from collections.abc import Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ratchet.store import Store
from ratchet.store.vitals import LiveRun, Monitor, Vitals

MEDIA_TYPE = CONTENT_TYPE_LATEST


class MetricsPage(Collector):
    """Collects from a store. Blocks, and raises Unavailable while the store is away: a target that is down
    says so better than numbers of yesterday."""

    def __init__(self, store: Store) -> None:
        self._monitor = Monitor(store)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        return []  # so that registering does not need the store

    def collect(self) -> Iterator[Metric]:
        vitals = self._monitor.read()
        runs = {phase.value: count for phase, count in vitals.runs.items()}
        yield _labelled("ratchet_runs", "Runs by state.", "phase", runs)
        yield from _totals(vitals)
        yield from _of_runs(vitals.live)


def _totals(vitals: Vitals) -> Iterator[Metric]:
    for name, title, values in (
        ("ratchet_incidents", "Incidents by what was lost.", vitals.incidents),
        ("ratchet_recoveries", "Incidents that took a new incarnation.", vitals.recoveries),
    ):
        counter = CounterMetricFamily(name, title, labels=["lost"])
        for lost, count in sorted(values.items()):
            counter.add_metric([lost], count)
        yield counter
    yield CounterMetricFamily(
        "ratchet_notices", "Everything that the outbox was ever told.", value=vitals.newest_notice
    )


def _of_runs(live: list[LiveRun]) -> Iterator[Metric]:
    information = GaugeMetricFamily(
        "ratchet_run_info", "1, for a run that goes on.", labels=["run", "recipe", "phase"]
    )
    seconds = GaugeMetricFamily(
        "ratchet_run_step_seconds", "Engine time of the last step, by part.", labels=["run", "part"]
    )
    for run in live:
        information.add_metric([run.run, run.recipe, run.phase.value], 1)
        for part, value in (run.seconds or {}).items():
            seconds.add_metric([run.run, part], value)
    yield information
    yield seconds
    yield _by_run("ratchet_run_step", "The last step.", {run.run: run.step for run in live})
    yield _by_run(
        "ratchet_run_steps_wanted", "The step a run ends with.", {run.run: run.max_num_steps for run in live}
    )
    yield _by_run(
        "ratchet_run_incarnation", "The newest incarnation.", {run.run: run.incarnation for run in live}
    )
    yield _by_run(
        "ratchet_run_progressed_timestamp_seconds",
        "When the newest step or state was reached.",
        {run.run: run.progressed_at for run in live},
    )
    yield _by_run(
        "ratchet_run_staleness_steps",
        "Steps between the weights that answered and those that were trained.",
        {run.run: run.staleness for run in live},
    )


def _by_run(name: str, title: str, values: Mapping[str, float | None]) -> Metric:
    return _labelled(name, title, "run", {run: value for run, value in values.items() if value is not None})


def _labelled(name: str, title: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(name, title, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge
