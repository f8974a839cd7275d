"""/metrics, for Prometheus."""

from pellucid.server.endpoint import Call, Reply
from pellucid.server.serving import Handlers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsRoute(Handlers):
    """The handler of /metrics."""

    async def __call__(self, call: Call) -> Reply:
        """Counters, gauges and histograms for Prometheus, by vLLM's names with vLLM's meaning."""
        from pellucid.server.metrics_text import metrics_text  # a tenth of the time of a start

        usage, speculation = await self.engine.kv_cache_usage(), await self.engine.speculation()
        text = metrics_text(self.serving, usage, speculation)
        return Reply(text, media_type=CONTENT_TYPE)
