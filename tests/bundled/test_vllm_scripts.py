"""Scripts for vLLM's offline API run with the import changed, on the bundled model."""

import re
from pathlib import Path

import pytest

from pellucid.loading.hub import BUNDLED_MODEL

SCRIPTS = Path(__file__).with_name("vllm_scripts")
PRINTED = {
    "basic": r"(Prompt:    '.+'\nOutput:    '.+'\n-+\n){4}$",
    "chat": r"^(Generated text: ['\"].*['\"]\n){13}$",
    "prefix_caching": r"^Generated answers are the same: True\nCached tokens: \[\d\d",
    "beam_search": r"^(-\d+\.\d{4} 'The capital of Peru is .*' \d+\n){5}(-.* 'Once.*' \d+\n){5}$",
    "logprobs": r"^request-0 True \[.*\]\n.*\n0 .*\n(  .* p=0\.\d+ best=1\n){1,6}1 ",
    "token_ids": r"^\[\[\d+, .*\]\]\n\[' Lima.*'\]\n$",
}


def test_every_script_is_run() -> None:
    assert PRINTED.keys() == {path.stem for path in SCRIPTS.glob("*.py")}


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pellucid.progress.FIRST_LINE", 3600.0)  # however slow the machine
    source = (SCRIPTS / f"{name}.py").read_text()
    source = source.replace("from vllm import", "from pellucid import")
    source = source.replace('"MODEL"', repr(str(BUNDLED_MODEL)))
    exec(compile(source, f"{name}.py", "exec"), {"__name__": "__main__"})
    out, err = capsys.readouterr()
    assert re.search(PRINTED[name], out, flags=re.DOTALL), out
    assert err == ""
