"""OpenTelemetry: a span for each call under the client's own trace, its phases, and the durations."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pellucid.server.generation import Generation
from pellucid.server.telemetry import Telemetry
from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server

pytest.importorskip("opentelemetry.sdk", reason="pellucid[otel] is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = {
    "messages": [{"role": "user", "content": "What is 12 + 7?"}],
    "max_tokens": 4,
    "ignore_eos": True,
}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def server(exporter: InMemorySpanExporter, reader: InMemoryMetricReader) -> Iterator[RunningServer]:
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracers, MeterProvider([reader]), "tested")
    with running_server(bundled_engine()) as running:
        running.service.on_ended.append(telemetry.record)
        yield running


def durations(reader: InMemoryMetricReader) -> dict[str, list[float]]:
    """Sum, count, and number of labels of each histogram."""
    data: Any = reader.get_metrics_data()
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    points = {each.name: each.data.data_points[0] for each in scope.metrics}
    return {name: [at.sum, at.count, len(at.attributes)] for name, at in points.items()}


def test_a_call_is_a_span_with_its_phases_under_the_clients_trace(
    server: RunningServer, exporter: InMemorySpanExporter, reader: InMemoryMetricReader
) -> None:
    ended: list[Generation] = []
    server.service.on_ended.append(ended.append)
    body = {**BODY, "seed": 1 << 63, "temperature": 0.5, "top_p": 0.75}
    reply = server.post("/v1/chat/completions", body, traceparent=f"00-{TRACE}-{PARENT}-01")
    server.wait_until_idle()
    server.wait_until(lambda: len(exporter.get_finished_spans()) == 4, "the spans")
    *phases, call = exporter.get_finished_spans()
    assert call.name == "chat tested" and call.parent is not None
    assert (f"{call.context.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, PARENT)
    usage = reply.json["usage"]
    found = dict(call.attributes or {})
    expected_attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pellucid",
        "gen_ai.request.model": "tested",
        "gen_ai.response.model": "tested",
        "gen_ai.response.id": reply.headers["x-request-id"],
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.seed": str(1 << 63),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length",),
        "http.route": "/v1/chat/completions",
        "pellucid.num_preemptions": 0,
    }
    assert found == expected_attributes and usage["completion_tokens"] == 4
    assert (call.kind, call.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    times = [time for phase in phases for time in (phase.start_time, phase.end_time)]
    metrics = ended[0].outputs[0].metrics
    assert metrics.first_scheduled_time is not None and metrics.finished_time is not None
    begin, (first, *_, last) = metrics.first_scheduled_time, metrics.token_times
    expected = [metrics.arrival_time, begin, begin, first, first, last, metrics.finished_time]
    since = [(time - call.start_time) / 1e9 for time in (*times, call.end_time)]
    assert since == pytest.approx([time - expected[0] for time in expected], abs=1e-6)
    seconds = {
        "request.duration": metrics.finished_time - metrics.arrival_time,
        "time_to_first_token": first - metrics.arrival_time,
        "time_per_output_token": (last - first) / 3,
    }
    for name, expected_sum in seconds.items():
        found_sum, *others = durations(reader)[f"gen_ai.server.{name}"]
        assert (others, found_sum) == ([1, 3], pytest.approx(expected_sum))


def test_a_text_without_a_seed_and_two_answers(
    server: RunningServer, exporter: InMemorySpanExporter, reader: InMemoryMetricReader
) -> None:
    server.post("/v1/completions", {"prompt": ["Once", "upon"], "n": 2, "max_tokens": 1})
    server.wait_until_idle()
    server.wait_until(lambda: len(exporter.get_finished_spans()) == 4, "the spans")
    call = exporter.get_finished_spans()[-1]
    found = dict(call.attributes or {})
    assert call.name == "text_completion tested" and call.parent is None
    assert "gen_ai.request.seed" not in found
    assert found["gen_ai.usage.input_tokens"] == 5 and found["gen_ai.usage.output_tokens"] == 4
    assert found["gen_ai.request.choice.count"] == 2
    counts = {name: count for name, (_, count, _) in durations(reader).items()}
    assert counts == {"gen_ai.server.request.duration": 2, "gen_ai.server.time_to_first_token": 2}


def test_a_call_that_is_refused_makes_no_span(
    server: RunningServer, exporter: InMemorySpanExporter
) -> None:
    assert server.post("/v1/chat/completions", {**BODY, "temperature": -1}).status == 400
    assert server.post("/v1/completions", {"prompt": "word " * 3000}).status == 400
    assert not exporter.get_finished_spans()


def test_a_collector_gets_spans_and_durations_under_the_name_of_the_service(
    server: RunningServer,
) -> None:
    bodies: dict[str, bytes] = {}
    ended: list[Generation] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies[self.path] = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{collector.server_port}"
        telemetry, end = Telemetry.exporting(address, "tested")
        server.service.on_ended += [telemetry.record, ended.append]
        server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})
        server.wait_until(lambda: bool(ended), "the call's end")
        end()
        collector.shutdown()
        thread.join()
    assert bodies.keys() == {"/v1/traces", "/v1/metrics"}
    for body in bodies.values():
        assert b"service.name" in body and b"unknown_service" not in body
