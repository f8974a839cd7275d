"""examples/grafana.json: every metric that it names is one of /metrics."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.http_server import RunningServer

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana.json"


def test_the_dashboard_asks_for_metrics_that_exist(server: RunningServer) -> None:
    server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2, "ignore_eos": True})
    families = text_string_to_metric_families(server.get("/metrics").body.decode())
    exist = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in expressions:
        names = re.findall(r"(?:vllm|pellucid):\w+", expression)
        assert names
        for name in names:
            assert name in exist, expression
            labels = re.findall(r"by \((\w+)\)", expression)
            assert {"model_name", *labels} <= exist[name], expression
