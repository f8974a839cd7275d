"""The text of /metrics for Prometheus: vLLM's names, and own names for what vLLM does not count."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pellucid.cluster.replica_pool import ReplicaPool
from pellucid.outputs import KVCacheUsage, SpeculationStatistics
from pellucid.server.metrics import COUNTERS, HISTOGRAMS
from pellucid.server.serving import Serving


def metrics_text(
    serving: Serving, usage: KVCacheUsage, speculation: SpeculationStatistics | None
) -> bytes:
    """The metrics at one moment."""
    registry = CollectorRegistry()
    registry.register(_Collector(serving, usage, speculation))
    return generate_latest(registry)


class _Collector:
    """The metrics at one moment, in prometheus_client's terms."""

    def __init__(
        self, serving: Serving, usage: KVCacheUsage, speculation: SpeculationStatistics | None
    ) -> None:
        self._serving = serving
        self._usage = usage
        self._speculation = speculation
        self._labels = {"model_name": serving.model.name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        service, metrics = self._serving.service, self._serving.service.metrics
        running = sum(generation.has_started for generation in service.under_way.values())
        waiting = len(service.under_way) - running
        yield self._gauge("vllm:num_requests_running", "Requests that have begun", running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that have not begun", waiting)
        deferred = sum(not generation.streams for generation in service.under_way.values())
        yield self._family(
            GaugeMetricFamily,
            "vllm:num_requests_waiting_by_reason",
            "For a seat or blocks (capacity), or while their text is encoded (deferred)",
            {("capacity",): waiting - deferred, ("deferred",): deferred},
            ("reason",),
        )
        share = self._usage.share_used
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Blocks of requests under way, 1 is all", share
        )
        yield self._cache_config()
        yield self._facts(
            "pellucid:engine_info",
            "Engines with equal identities give the same bits",
            {name: str(fact) for name, fact in self._serving.model.identity.items()},
        )
        num_cached = self._usage.num_cached_blocks
        yield self._gauge(
            "pellucid:kv_cached_blocks", "Free blocks that can be found again", num_cached
        )
        num_tokens = service.admission.tokens.used
        yield self._gauge("pellucid:unfinished_prompt_tokens", "Of admitted requests", num_tokens)
        stalled = service.engine.seconds_without_step
        yield self._gauge("pellucid:seconds_without_step", "While requests are unfinished", stalled)
        if (num_threads := service.engine.num_compute_threads) is not None:
            documentation = "Fewer while other programs use the cores"
            yield self._gauge("pellucid:compute_threads", documentation, num_threads)
        if isinstance(service.engine, ReplicaPool):
            yield from self._replicas(service.engine)
        for name, documentation in COUNTERS.items():
            yield self._counter(name, documentation, metrics.counters[name])
        if self._speculation is not None:
            yield from self._drafts(self._speculation)
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

    def _replicas(self, pool: ReplicaPool) -> Iterator[Metric]:
        yield self._family(
            GaugeMetricFamily,
            "pellucid:replica_ready",
            "Whether requests are sent to a replica",
            {(str(each.number),): float(each.is_ready) for each in pool.replicas},
            ("replica",),
        )
        yield self._family(
            GaugeMetricFamily,
            "pellucid:replica_requests",
            "Unfinished requests of a replica",
            {(str(each.number),): each.num_requests for each in pool.replicas},
            ("replica",),
        )
        yield self._counter(
            "pellucid:replica_restarts", "Replicas that have ended", pool.num_restarts
        )
        yield self._counter(
            "pellucid:failovers", "Requests that went on in another replica", pool.num_failovers
        )

    def _drafts(self, speculation: SpeculationStatistics) -> Iterator[Metric]:
        """Counters of drafts. What vLLM calls a draft is all drafts of a request in a step."""
        prefix = "vllm:spec_decode_num"
        yield self._counter(
            f"{prefix}_drafts", "Times that a request had drafts", speculation.num_rounds
        )
        yield self._counter(f"{prefix}_draft_tokens", "Drafts", speculation.num_drafts)
        yield self._counter(f"{prefix}_accepted_tokens", "Right drafts", speculation.num_right)
        by_position = {str(place): n for place, n in enumerate(speculation.right_by_position)}
        yield self._by_label(
            f"{prefix}_accepted_tokens_per_pos",
            "Right drafts by their place among a request's drafts",
            "position",
            by_position,
        )
        yield self._gauge(
            "pellucid:speculation_speedup",
            "Decode with drafts against decode without, by measured times of steps",
            speculation.speedup,
        )

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        return self._family(CounterMetricFamily, name, documentation, {(): value})

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        return self._family(GaugeMetricFamily, name, documentation, {(): value})

    def _by_label(
        self, name: str, documentation: str, label: str, counts: Mapping[str, int]
    ) -> Metric:
        values: dict[tuple[str, ...], float] = {(value,): n for value, n in counts.items()}
        return self._family(CounterMetricFamily, name, documentation, values, (label,))

    def _cache_config(self) -> Metric:
        config = self._serving.service.engine.config
        facts = {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(self._usage.num_blocks),  # llm-d reads this name on CPUs too
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.enable_prefix_caching),
        }
        return self._facts("vllm:cache_config_info", "The KV cache", facts)

    def _facts(self, name: str, documentation: str, facts: Mapping[str, str]) -> Metric:
        values = {tuple(facts.values()): 1.0}
        return self._family(GaugeMetricFamily, name, documentation, values, tuple(facts))

    def _family(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        documentation: str,
        values: Mapping[tuple[str, ...], float],
        labels: tuple[str, ...] = (),
    ) -> Metric:
        """A metric by the values of labels beside those of the server."""
        family = kind(name, documentation, labels=[*self._labels, *labels])
        for own, value in values.items():
            family.add_metric([*self._labels.values(), *own], value)
        return family
