"""OpenTelemetry traces, if OTEL_EXPORTER_OTLP_ENDPOINT says where to: else every function here does nothing.

A trace goes from process to process as a *carrier*: the W3C headers of the span it was taken in, a small
mapping that travels beside an order. No carrier, no trace.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ratchet.spec import deadlines
from ratchet.spec.faults import SpecError
from ratchet.spec.ids import OpId
from ratchet.telemetry import logs

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORT_EVERY = 1.0
"""Seconds. Engines may be killed at any time; what they had not sent by then is missing in the trace."""

Carrier = Mapping[str, str]

_provider: Any = None


def start(process: str) -> None:
    """Send this process's spans from now on, if that is configured. Raises SpecError without the packages."""
    global _provider
    if _provider is not None or not any(os.environ.get(name) for name in ENDPOINT_VARIABLES):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SpecError(
            f"{ENDPOINT_VARIABLES[0]} is set, and traces need OpenTelemetry: pip install 'ratchet[otel]'"
        ) from error
    name = os.environ.get("OTEL_SERVICE_NAME") or f"ratchet-{process}"
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=int(EXPORT_EVERY * 1000))
    )
    _provider = provider
    logs.show_trace_ids(_trace_id)


def stop() -> None:
    """Send what is left, within a deadline, and nothing more."""
    global _provider
    if _provider is not None:
        provider, _provider = _provider, None
        provider.force_flush(int(deadlines.TRACES_FLUSH * 1000))
        provider.shutdown()


def active() -> bool:
    return _provider is not None


def tracer() -> Any:
    """An opentelemetry.trace.Tracer. Only while `active`."""
    return _provider.get_tracer("ratchet")


def carrier() -> dict[str, str] | None:
    """The span around this call, to be sent along; None if there is none."""
    if _provider is None:
        return None
    headers: dict[str, str] = {}
    _propagator().inject(headers)
    return headers or None


@contextmanager
def root(name: str, parent: Carrier) -> Iterator[Any]:
    """A span of somebody's request; of a new trace, if `parent` is empty. Only while `active`."""
    with tracer().start_as_current_span(name, context=_propagator().extract(dict(parent))) as span:
        yield span


@contextmanager
def span(name: str, parent: Carrier | None = None, **attributes: str | int) -> Iterator[None]:
    """A span around the body: below the one that `parent` carries or, without one, below the one around this
    call. What is traced by nobody begins no trace. Attributes are named `ratchet.…`."""
    if _provider is None or (parent is None and not inside()):
        yield
        return
    context = _propagator().extract(dict(parent)) if parent is not None else None
    named: dict[str, str | int] = {f"ratchet.{key}": value for key, value in attributes.items()}
    with tracer().start_as_current_span(name, context=context, attributes=named):
        yield


def operation(who: str, op: OpId, parent: Carrier | None = None) -> AbstractContextManager[None]:
    """The span of somebody's part in an operation."""
    return span(f"{who} {op.kind.value}", parent, run=op.run, incarnation=op.incarnation, step=op.step)


@contextmanager
def below(parent: Carrier | None) -> Iterator[None]:
    """Spans inside are below the one that `parent` carries, which another process has begun."""
    if _provider is None or parent is None:
        yield
        return
    from opentelemetry import context

    token = context.attach(_propagator().extract(dict(parent)))
    try:
        yield
    finally:
        context.detach(token)


def inside() -> bool:
    """Whether there is a span around this call."""
    if _provider is None:
        return False
    from opentelemetry import trace

    return trace.get_current_span().get_span_context().is_valid


def _trace_id() -> str | None:
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
