"""One launch is one trace: from the request through workflow and activities into conductor and actors."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from temporalio.testing import WorkflowEnvironment

from api.app import create_app
from ratchet.sessions.conductor import Conductor
from ratchet.spec.faults import SpecError
from ratchet.spec.home import Home
from ratchet.spec.ids import OpId, OpKind
from ratchet.spec.operations import RestoreArgs
from ratchet.spec.stack import StackState
from ratchet.telemetry import tracing
from workers.actors.lines import Line, LineServer
from workers.temporal import connect
from workers.testing.engines import Script, ScriptedExecutor
from workers.testing.scripted import scripted_stack

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

SPEC: dict[str, Any] = {
    "name": "scripted",
    "policy": {"model": "tiny", "train_micro_batch_size": 2},
    "generation": {"max_new_tokens": 4},
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 2},
    "environment": {"name": "arithmetic"},
    "evaluation": {"num_problems": 0},
}
RESTORE = RestoreArgs(op=OpId(run="r", incarnation=1, step=0, kind=OpKind.RESTORE))


class Collector:
    """Takes what OTLP exporters post."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def traces(self) -> dict[bytes, list[Any]]:
        """Everything that was sent, once this process has sent all it has."""
        tracing.stop()
        found: defaultdict[bytes, list[Any]] = defaultdict(list)
        for span in self.spans:
            found[span.trace_id].append(span)
        return found


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    tracing.start("test")
    yield collector
    tracing.stop()
    collector.server.shutdown()
    collector.server.server_close()


def parents(trace: list[Any]) -> dict[str, str | None]:
    """Name of every span's parent, by its own name."""
    names = {span.span_id: span.name for span in trace}
    return {span.name: names.get(span.parent_span_id) for span in trace}


async def test_one_launch_is_one_trace(
    collector: Collector, ratchet_temporal: WorkflowEnvironment, home: Home
) -> None:
    target = ratchet_temporal.client
    address = target.service_client.config.target_host
    home.root.mkdir()
    state = StackState(supervisor_pid=1, temporal_address=address, namespace=target.namespace)
    home.state_file.write_text(state.model_dump_json())
    client = await connect(address, namespace=target.namespace)
    app = create_app(home)
    async with scripted_stack(client, home.root), app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            launched = await http.post("/v1/runs", json={"run_id": "traced", "spec": SPEC})
            assert launched.status_code == 201, launched.text
            async with asyncio.timeout(60):
                while not (await http.get("/v1/runs/traced")).json()["ended_at"]:
                    await asyncio.sleep(0.05)
    (trace, *others) = collector.traces().values()
    assert not others, [[span.name for span in other] for other in others]
    above = parents(trace)
    way = ["conductor train_step"]
    while (parent := above[way[-1]]) is not None:
        way.append(parent)
    assert way == [
        "conductor train_step",
        "RunActivity:train_step",
        "StartActivity:train_step",
        "StartWorkflow:RunWorkflow",
        "POST /v1/runs",
    ]
    assert above["RunWorkflow:RunWorkflow"] == "StartWorkflow:RunWorkflow"
    steps = [span for span in trace if span.name == "conductor train_step"]
    assert len(steps) == 2
    said = {item.key: item.value.string_value or item.value.int_value for item in steps[0].attributes}
    assert (said["ratchet.run"], said["ratchet.incarnation"]) == ("traced", 1)


async def test_a_trace_goes_over_the_wire_to_the_conductor_and_over_a_line_to_an_actor(
    collector: Collector,
) -> None:
    from workers.actors.conductor import _Desk

    def restore(_: RestoreArgs) -> str:
        return "restored"

    server = LineServer("127.0.0.1", {"engine": {"restore": restore}})
    line = Line(server.endpoint, "trainer", "engine")
    with tracing.root("launch", {}):
        carrier = tracing.carrier()
        assert line.call("restore", RESTORE, deadline=5, trace=carrier) == "restored"
    desk = _Desk(Conductor(ScriptedExecutor(Script(), Home())), "secret")
    await desk.handle("hello", {"secret": "secret"})
    await desk.handle("submit", {"args": RESTORE.model_dump(mode="json"), "wait": 5.0, "trace": carrier})
    assert line.call("restore", RESTORE, deadline=5) == "restored"  # by somebody who does not trace
    (trace,) = collector.traces().values()
    assert parents(trace) == {"launch": None, "actor restore": "launch", "conductor restore": "launch"}
    assert len(trace) == 3


def test_nothing_is_traced_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tracing.start("test")
    assert not tracing.active()
    with tracing.span("nothing"), tracing.below({"traceparent": "x"}):
        assert tracing.carrier() is None


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SpecError, match=r"pip install 'ratchet\[otel\]'"):
        tracing.start("test")
