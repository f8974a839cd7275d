"""The examples of docs/engine.md run as they stand."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs/engine.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
PRINTED = [
    "length",
    r"\n?(length|stop)\n$",
    r"request-1 '.*\nabort \d+",
    r"^\[.*\]\n.+ \d+",
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == len(PRINTED)


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_an_example_runs(example: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLES[example], f"docs/engine.md, example {example}", "exec"), {})
    out, err = capsys.readouterr()
    assert re.search(PRINTED[example], out, flags=re.DOTALL), out
    assert err == ""
