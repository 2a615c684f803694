"""A session's data plane, for Prometheus."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ratchet.spec.home import Home
from ratchet.telemetry import targets

GAUGES = {
    "groups": "Groups that are there.",
    "bytes": "Bytes that take room.",
    "capacity": "Bytes that there is room for; 0: no bound.",
    "leases": "Live leases: claims outstanding.",
    "writing": "Slots that are being written.",
    "erasing": "Slots that nobody needs and that still take room.",
    "waiting": "Producers that wait for room.",
}
COUNTERS = {
    "groups_in": "Groups put.",
    "rows_in": "Samples put.",
    "bytes_in": "Bytes put.",
    "groups_out": "Groups leased.",
    "rows_out": "Samples leased.",
    "bytes_out": "Bytes leased.",
    "room_waits": "Puts that had to wait for room.",
    "room_wait_s": "Seconds that puts waited for room.",
}
PREFIX = "ratchet_data_plane"
UNITS = {"room_wait_s": "room_wait_seconds"}
Stats = Callable[[], Mapping[str, Mapping[str, Any]]]


class DataPlaneMetrics(Collector):
    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, title in GAUGES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", title, labels=["partition"])
            for partition, found in stats.items():
                gauge.add_metric([partition], found[name])
            yield gauge
        for name, title in COUNTERS.items():
            counter = CounterMetricFamily(f"{PREFIX}_{UNITS.get(name, name)}", title, labels=["partition"])
            for partition, found in stats.items():
                counter.add_metric([partition], found[name])
            yield counter
        depth = GaugeMetricFamily(
            f"{PREFIX}_depth", "Groups that a task has not begun.", labels=["partition", "task"]
        )
        evicted = CounterMetricFamily(
            f"{PREFIX}_evicted", "Groups dropped before all tasks were done.", labels=["partition", "cause"]
        )
        for partition, found in stats.items():
            for task, groups in found["depth"].items():
                depth.add_metric([partition, task], groups)
            for cause, groups in found["evicted"].items():
                evicted.add_metric([partition, cause], groups)
        yield depth
        yield evicted


def offer(home: Home, run: str, session: int, stats: Stats) -> None:
    """Serve them, and say where (see ratchet.telemetry.targets)."""
    registry = CollectorRegistry()
    registry.register(DataPlaneMetrics(stats))

    def listen(address: str) -> None:
        host, _, port = address.rpartition(":")
        start_http_server(int(port), host, registry)

    targets.offer(home, f"data-plane-{run}-{session}", listen, run=run)
