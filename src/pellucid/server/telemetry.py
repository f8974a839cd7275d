"""OpenTelemetry: spans and measurements of calls, by the semantic conventions for generative AI.

https://opentelemetry.io/docs/specs/semconv/gen-ai/. The event loop makes them
when a call has ended, of times that the engine notes anyway, and a thread of OpenTelemetry's exports them.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pellucid.outputs import RequestOutput
from pellucid.server.generation import Generation

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

PROVIDER = "pellucid"
TEXT_PATHS = ("/v1/completions", "/api/generate")  # all other generating routes take conversations


class Telemetry:
    """Writes what happened to each call.

    Args:
        tracer_provider: takes a span for each call, with a span for each phase of its first prompt.
        meter_provider: takes the durations.
        model: its name.
    """

    def __init__(
        self, tracer_provider: "TracerProvider", meter_provider: "MeterProvider", model: str
    ) -> None:
        self._model = model
        self._tracer = tracer_provider.get_tracer(PROVIDER)
        meter = meter_provider.get_meter(PROVIDER)
        self._histograms = {
            name: meter.create_histogram(f"gen_ai.server.{name}", unit="s", description=meaning)
            for name, meaning in (
                ("request.duration", "From arrival to the end"),
                ("time_to_first_token", "From arrival to the first token"),
                ("time_per_output_token", "Between tokens after the first, on average"),
            )
        }
        # The engine's clock has its own epoch
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    @classmethod
    def exporting(cls, endpoint: str, model: str) -> "tuple[Telemetry, Callable[[], None]]":
        """Telemetry that is sent to a collector by OTLP over HTTP, and what ends the sending.

        Args:
            endpoint: the collector's address, such as http://127.0.0.1:4318.
            model: its name.

        Raises:
            ValueError: OpenTelemetry is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ValueError(
                "otlp_endpoint: needs OpenTelemetry: pip install 'pellucid[otel]'"
            ) from None
        base = endpoint.rstrip("/")
        resource = Resource.create({"service.name": PROVIDER})
        tracers = TracerProvider(resource=resource)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{base}/v1/metrics"))
        meters = MeterProvider([reader], resource=resource)

        def end() -> None:
            tracers.shutdown()
            meters.shutdown()

        return cls(tracers, meters, model), end

    def record(self, generation: Generation) -> None:
        """Writes a call that has ended, or whose client went away. A call that was refused has no outputs."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if not generation.outputs:
            return
        attributes = self._attributes(generation)
        started = min(output.metrics.arrival_time for output in generation.outputs)
        ended = max(_end(output) for output in generation.outputs)
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {self._model}",
            context=TraceContextTextMapPropagator().extract(dict(generation.call.headers)),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=self._wall(started),
        )
        if "error" in attributes["gen_ai.response.finish_reasons"]:
            span.set_status(Status(StatusCode.ERROR))
        inner = set_span_in_context(span)
        for name, begin, end in _phases(generation.outputs[0]):
            phase = self._tracer.start_span(name, context=inner, start_time=self._wall(begin))
            phase.end(self._wall(end))
        span.end(self._wall(ended))
        self._measure(generation, attributes)

    def _attributes(self, generation: Generation) -> dict[str, Any]:
        outputs, params = generation.outputs, generation.request.params
        completions = [completion for output in outputs for completion in output.outputs]
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": (
                "text_completion" if generation.call.path in TEXT_PATHS else "chat"
            ),
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.id": generation.id,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.choice.count": params.n,
            "gen_ai.usage.input_tokens": sum(len(output.prompt_token_ids) for output in outputs),
            "gen_ai.usage.output_tokens": sum(len(each.token_ids) for each in completions),
            "gen_ai.usage.cache_read.input_tokens": sum(
                output.num_cached_tokens for output in outputs
            ),
            "gen_ai.response.finish_reasons": [
                each.finish_reason or "abort" for each in completions
            ],
            "http.route": generation.call.path,
            "pellucid.num_preemptions": sum(output.metrics.num_preemptions for output in outputs),
        }
        if isinstance(params.max_tokens, int):
            attributes["gen_ai.request.max_tokens"] = params.max_tokens
        if params.seed is not None:
            attributes["gen_ai.request.seed"] = str(params.seed)  # beyond 64 bits with a sign
        return attributes

    def _measure(self, generation: Generation, attributes: dict[str, Any]) -> None:
        labels = {
            key: attributes[key]
            for key in ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
        }
        for output in generation.outputs:
            metrics = output.metrics
            self._add("request.duration", _end(output) - metrics.arrival_time, labels)
            self._add("time_to_first_token", metrics.time_to_first_token, labels)
            num_gaps = sum(len(each.token_ids) for each in output.outputs) - len(output.outputs)
            if len(output.outputs) == 1 and num_gaps > 0 and metrics.decode_seconds is not None:
                self._add("time_per_output_token", metrics.decode_seconds / num_gaps, labels)

    def _add(self, name: str, seconds: float | None, labels: dict[str, Any]) -> None:
        if seconds is not None:
            self._histograms[name].record(seconds, labels)

    def _wall(self, seconds: float) -> int:
        """A time of the engine's clock in nanoseconds since 1970."""
        return round(seconds * 1e9) + self._epoch_ns


def _end(output: RequestOutput) -> float:
    """When the last completion of a prompt ended; now, if it was aborted."""
    return (
        time.monotonic() if output.metrics.finished_time is None else output.metrics.finished_time
    )


def _phases(output: RequestOutput) -> list[tuple[str, float, float]]:
    """Name, beginning and end of each phase that a prompt has reached."""
    metrics = output.metrics
    if (started := metrics.first_scheduled_time) is None:
        return [("queue", metrics.arrival_time, _end(output))]
    phases = [("queue", metrics.arrival_time, started)]
    if not metrics.token_times:
        return [*phases, ("prefill", started, _end(output))]
    first, last = metrics.token_times[0], metrics.token_times[-1]
    return [*phases, ("prefill", started, first), ("decode", first, last)]
