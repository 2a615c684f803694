"""The sinks' process: copies what the store knows of runs to where their specs say.

`python -m workers.sinks`, started by the supervisor. It talks to the store only, and may be away for any
time.
"""

import asyncio
import logging
import signal
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ratchet.sinks.follower import Follower
from ratchet.spec.home import Home
from ratchet.store import Store
from ratchet.telemetry import logs, targets
from workers.liveness import beat_if_asked

logger = logging.getLogger(__name__)

PROCESS = "sinks"


class Progress(Collector):
    """How far the sinks are, for Prometheus."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        behind = GaugeMetricFamily(
            "ratchet_sink_behind_notices", "What a sink has not seen yet.", labels=["run", "sink"]
        )
        for key, notices in self._follower.behind().items():
            behind.add_metric(key, notices)
        yield behind
        counted = {
            "ratchet_sink_written": ("Points and messages that sinks took.", self._follower.written()),
            "ratchet_sink_failures": ("Attempts that failed.", self._follower.failures),
            "ratchet_sink_undelivered": ("Messages that were given up.", self._follower.given_up()),
        }
        for name, (title, values) in counted.items():
            counter = CounterMetricFamily(name, title, labels=["kind"])
            for kind, value in values.items():
                counter.add_metric([kind], value)
            yield counter


async def follow_runs(home: Home) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = Store(home.store_url)
    await asyncio.to_thread(store.migrate)
    follower = Follower(store, home)
    registry = CollectorRegistry()
    registry.register(Progress(follower))
    targets.offer(home, PROCESS, lambda address: _serve(address, registry))
    tasks = [asyncio.create_task(follower.run()), asyncio.create_task(beat_if_asked())]
    stopped = asyncio.create_task(stop.wait())
    logger.info("following the runs of %s", home.root)
    await asyncio.wait([tasks[0], stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, stopped):
        task.cancel()
    (failed, *_) = await asyncio.gather(*tasks, return_exceptions=True)
    await follower.rest()
    store.close()
    if isinstance(failed, Exception):
        raise failed


def _serve(address: str, registry: CollectorRegistry) -> None:
    host, _, port = address.rpartition(":")
    start_http_server(int(port), host, registry)


def main(home: Home | None = None) -> None:
    logs.configure(PROCESS)
    asyncio.run(follow_runs(home or Home()))


if __name__ == "__main__":
    main()
