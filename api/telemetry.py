"""What the API's process says of itself: log lines, traces, and metrics for Prometheus beside `/metrics`."""

import atexit
from typing import Any

from prometheus_client import start_http_server
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.client import Interceptor, OutboundInterceptor, QueryWorkflowInput
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from api.metrics_page import MetricsPage
from ratchet.spec.home import Home
from ratchet.store import Store
from ratchet.telemetry import logs, targets, tracing

PROCESS = "api"
_CARRIED = ("traceparent", "tracestate")
_LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})


def begin(home: Home) -> None:
    """Called once, before anything connects to Temporal."""
    logs.configure(PROCESS)
    tracing.start(PROCESS)
    atexit.register(tracing.stop)
    # On a port of its own: Prometheus needs no token for what only the stack's own network can reach.
    page = MetricsPage(Store(home.store_url))
    targets.offer(home, PROCESS, lambda address: _serve(address, page))
    targets.offer(home, f"{PROCESS}-sdk", _measure_sdk)


def interceptors() -> list[Interceptor]:
    """For the client of Temporal: a launch carries its trace into the workflow."""
    return [_Orders()] if tracing.active() else []


class _Orders(Interceptor):
    """Traces what is asked of workflows inside a traced request; pages that look twice a second would make a
    trace of every look."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        from temporalio.contrib.opentelemetry import TracingInterceptor

        return _Asked(next, TracingInterceptor(tracing.tracer()).intercept_client(next))


class _Asked(OutboundInterceptor):
    def __init__(self, plain: OutboundInterceptor, traced: OutboundInterceptor) -> None:
        super().__init__(traced)
        self._plain = plain

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        asked = self.next if tracing.inside() else self._plain
        return await asked.query_workflow(input)


class Traced:
    """A request that changes something is a span, and so is one whose sender traces it (W3C traceparent)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not tracing.active():
            return await self._app(scope, receive, send)
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        parent = {key: headers[key] for key in _CARRIED if key in headers}
        if not parent and scope["method"] in _LOOKING:
            return await self._app(scope, receive, send)
        with tracing.root(scope["method"], parent) as span:
            await self._app(scope, receive, send)
            if route := scope.get("route"):  # known by now; the path itself would be another name every time
                span.update_name(f"{scope['method']} {route.path}")


def _serve(address: str, page: MetricsPage) -> None:
    host, _, port = address.rpartition(":")
    start_http_server(int(port), host, page.registry)


def _measure_sdk(address: str) -> None:
    metrics: Any = PrometheusConfig(
        bind_address=address, durations_as_seconds=True, unit_suffix=True, counters_total_suffix=True
    )
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(metrics=metrics)))
