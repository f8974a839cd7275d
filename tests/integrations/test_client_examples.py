"""The examples of docs/clients.md with LangChain and LiteLLM run as they stand, against a server on another port."""

import re
from pathlib import Path

import pytest

from support.http_server import RunningServer

PAGE = Path(__file__).parents[2] / "docs/clients.md"
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.parametrize("library", ["langchain_openai", "litellm"])
def test_an_example_runs(
    library: str, server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (source,) = [each for each in examples if library in each]
    here = source.replace(ADDRESS, server.url).replace("pellucid-5m", "tested")
    exec(compile(here, "example", "exec"), {"__name__": "__main__"})
    assert len(capsys.readouterr().out) > 3
