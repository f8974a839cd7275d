"""/metrics in Prometheus' text format: vLLM's names, and own names for what vLLM does not count."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pellucid.outputs import KVCacheUsage
from pellucid.server.endpoint import Call, Reply
from pellucid.server.metrics import COUNTERS, HISTOGRAMS
from pellucid.server.serving import Serving

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class MetricsRoute:
    """The handler of /metrics."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply:
        """Counters, gauges and histograms for Prometheus, by vLLM's names with vLLM's meaning."""
        usage = await self.serving.service.engine.kv_cache_usage()
        registry = CollectorRegistry()
        registry.register(_Collector(self.serving, usage))
        return Reply(generate_latest(registry), media_type=CONTENT_TYPE)


class _Collector:
    """The metrics at one moment, in prometheus_client's terms."""

    def __init__(self, serving: Serving, usage: KVCacheUsage) -> None:
        self._serving = serving
        self._usage = usage
        self._labels = {"model_name": serving.model.name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        service, metrics = self._serving.service, self._serving.service.metrics
        running = sum(generation.has_started for generation in service.under_way.values())
        waiting = len(service.under_way) - running
        yield self._gauge("vllm:num_requests_running", "Requests that have begun", running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that have not begun", waiting)
        share = self._usage.share_used
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Blocks of requests under way, 1 is all", share
        )
        yield self._cache_config()
        num_cached = self._usage.num_cached_blocks
        yield self._gauge(
            "pellucid:kv_cached_blocks", "Free blocks that can be found again", num_cached
        )
        num_tokens = service.admission.tokens.used
        yield self._gauge("pellucid:unfinished_prompt_tokens", "Of admitted requests", num_tokens)
        stalled = service.seconds_without_step
        yield self._gauge("pellucid:seconds_without_step", "While requests are unfinished", stalled)
        for name, documentation in COUNTERS.items():
            counter = CounterMetricFamily(name, documentation, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), metrics.counters[name])
            yield counter
        yield self._by_label(
            "vllm:request_success", "Answers that have ended", "finished_reason", metrics.finished
        )
        refused = {"queue_full": service.admission.num_refused}
        yield self._by_label(
            "vllm:admission_rejections", "Requests refused with 429", "reason", refused
        )
        for name, histogram in metrics.histograms.items():
            family = HistogramMetricFamily(name, HISTOGRAMS[name][0], labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.sum)
            yield family

    def _gauge(self, name: str, documentation: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(name, documentation, labels=list(self._labels))
        gauge.add_metric(list(self._labels.values()), value)
        return gauge

    def _by_label(
        self, name: str, documentation: str, label: str, counts: "Counter[str] | dict[str, int]"
    ) -> CounterMetricFamily:
        counter = CounterMetricFamily(name, documentation, labels=[*self._labels, label])
        for value, count in counts.items():
            counter.add_metric([*self._labels.values(), value], count)
        return counter

    def _cache_config(self) -> GaugeMetricFamily:
        config = self._serving.service.engine.config
        facts = {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(self._usage.num_blocks),  # llm-d reads this name on CPUs too
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.enable_prefix_caching),
        }
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache", labels=[*self._labels, *facts]
        )
        info.add_metric([*self._labels.values(), *facts.values()], 1)
        return info
