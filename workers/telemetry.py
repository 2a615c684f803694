"""What a process of ours sets up first: log lines, traces, and the metrics of its Temporal SDK."""

import atexit
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.worker import Interceptor as WorkerInterceptor

from ratchet.spec.home import Home
from ratchet.spec.ids import OpId
from ratchet.telemetry import logs, targets, tracing


def begin(
    process: str,
    home: Home,
    *,
    run: str | None = None,
    incarnation: int | None = None,
    file: Path | None = None,
) -> None:
    """Called first thing in `main`, before anything connects to Temporal. `process` names it in log lines,
    traces and metrics, together with `run` and `incarnation` if it serves one run only. `file`: for log
    lines, beside stderr. Raises SpecError for settings of the environment that cannot be."""
    logs.configure(process, run=run, incarnation=incarnation, file=file)
    tracing.start(process)
    atexit.register(tracing.stop)
    name = f"{process}-{run}-{incarnation}" if run else process
    labels = {"run": run} if run else {}
    targets.offer(home, name, _measure_sdk, **labels)


def _measure_sdk(address: str) -> None:
    metrics = PrometheusConfig(
        bind_address=address, durations_as_seconds=True, unit_suffix=True, counters_total_suffix=True
    )
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(metrics=metrics)))


def interceptors() -> list[ClientInterceptor]:
    """For every client of ours and, through it, its workers."""
    found: list[ClientInterceptor] = [Subjects()]
    if tracing.active():
        from temporalio.contrib.opentelemetry import TracingInterceptor

        found.append(TracingInterceptor(tracing.tracer()))
    return found


class Subjects(ClientInterceptor, WorkerInterceptor):
    """Log lines of an activity say which run, incarnation and step it is for."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Subject(next)


class _Subject(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        if info.workflow_id is None:
            return await self.next.execute_activity(input)
        incarnation, step = _place(info.activity_id, input.args[0] if input.args else None)
        with logs.about(info.workflow_id, incarnation, step):
            return await self.next.execute_activity(input)


def _place(activity_id: str, argument: object) -> tuple[int | None, int | None]:
    """Operations are activities of that name; the others say it in their arguments, if they know it."""
    try:
        op = OpId.parse(activity_id)
    except ValueError:
        return getattr(argument, "incarnation", None) or getattr(argument, "session", None), None
    return op.incarnation, op.step
