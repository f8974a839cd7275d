"""/metrics, for Prometheus."""

from dataclasses import dataclass

from pellucid.server.endpoint import Call, Reply
from pellucid.server.serving import Serving

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class MetricsRoute:
    """The handler of /metrics."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply:
        """Counters, gauges and histograms for Prometheus, by vLLM's names with vLLM's meaning."""
        from pellucid.server.metrics_text import metrics_text  # a tenth of the time of a start

        engine = self.serving.service.engine
        usage, speculation = await engine.kv_cache_usage(), await engine.speculation()
        text = metrics_text(self.serving, usage, speculation)
        return Reply(text, media_type=CONTENT_TYPE)
