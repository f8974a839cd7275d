"""The examples of docs/clients.md and docs/server.md run as they stand, against a server on another port."""

import gc
import re
from pathlib import Path

import pytest

from support.http_server import RunningServer

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8000"
OTHERS = ("langchain_openai", "litellm")  # tests/integrations runs these
EXAMPLES = [
    pytest.param(source, id=f"{page}-{index}")
    for page in ("clients", "server")
    for index, source in enumerate(
        re.findall(
            r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE
        )
    )
    if not any(name in source for name in OTHERS)
]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # examples leave their clients open
@pytest.mark.parametrize("source", EXAMPLES)
def test_an_example_runs(
    source: str, server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ADDRESS in source
    here = source.replace(ADDRESS, server.url).replace("pellucid-5m", "tested")
    exec(compile(here, "example", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
    gc.collect()  # of the open clients: a later test would be told of their sockets
    server.wait_until_idle()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 5
