"""The examples of docs/events.md run as they stand."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs/events.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
PRINTED = [r"^\['hello', 'req\.add', .*'step', 'req\.ledger'\]\n$", r"^.{8,}\n$"]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == len(PRINTED)


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_an_example_runs(
    example: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[example], f"docs/events.md, example {example}", "exec"), {})
    out, err = capsys.readouterr()
    assert re.search(PRINTED[example], out, flags=re.DOTALL), out
    assert err == ""
