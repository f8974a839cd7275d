"""Every Python example of README.md and docs/ runs unchanged on the bundled model."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pellucid.loading.hub import BUNDLED_MODEL
from support.chat_templates import FAMILIES

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.name not in ("clients.md", "server.md")  # these need a server: tests/server runs them
]
# What each example of a page prints.
PRINTED = {
    "README.md": [r"^The capital of Peru is  ?Lima.*\nOnce upon a time .+\n.+\n.+"],
    "answers.md": [r"^\[ContentText\(text='2'\).*\(text='4'\)"],
    "beam-search.md": [r"^(-\d+\.\d{3} .*\n){2}$"],
    "engine.md": [
        "length",
        r"\n?(length|stop)\n$",
        r"request-1 '.*\nabort \d+",
        r"^\[' Lima\.', ' Tokyo\.', ' Nairobi\.', ' Oslo\.\\?n?'\]\n.+ \d+",
    ],
    "events.md": [
        r"^\['hello', 'req\.add', .*'step', 'req\.ledger'\]\n$",
        r"^.{8,}\n$",
        r"^\['hello', 'req\.add', .*'step', 'req\.ledger'\]\n$",
    ],
    "kv-cache.md": ["^$"],
    "python.md": [
        r"^The capital of Peru is ->  Lima\.\nThe capital of Japan is ->  Tokyo\.\n$",
        r"^The KV cache keeps .*\.\nstop\n$",
        r"^The capital of Peru is Lima\.\nThe capital of Japan is Tokyo\.\n.* Oslo\.\n$",
        r"^The KV cache keeps .*\.\n$",
        r"^.*Lima\.\n0 of \d+ .*\n.*\n16 of \d+ .*\n.* 4\.\n(48|64) of \d+ .*\n$",
        r"^ Japan is Tokyo\.\n$",
        r"get_weather.*\nanswered: (stop|length)\n$",
        r"^True\nTrue\n$",
        r"^1 ' L'\n2 '.*'\n3 '.*'\n$",
        r"^'The capital of Peru is Lima.*'\n'The capital of Peru is .*'\n$",
        r"^2\nthis LLM is closed; make another one\n$",
    ],
    "sampling.md": [r"^Yes 1 structured_outputs\n$"],
    "scale.md": [r"^True\n$"],
}


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


CASES = [(page, index) for page in PAGES for index in range(len(examples(page)))]


def test_it_is_said_what_every_example_prints() -> None:
    found = {page.name: len(examples(page)) for page in PAGES if examples(page)}
    assert {name: len(printed) for name, printed in PRINTED.items()} == found


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """`path/to/model` is the bundled model; `path/to/Qwen3-0.6B` is it with a template for tools."""
    (tmp_path / "path/to").mkdir(parents=True)
    shutil.copytree(BUNDLED_MODEL, tmp_path / "path/to/model")
    qwen = shutil.copytree(BUNDLED_MODEL, tmp_path / "path/to/Qwen3-0.6B")
    (qwen / "SHA256SUMS").unlink()
    config = json.loads((qwen / "tokenizer_config.json").read_text())
    config["chat_template"] = FAMILIES["qwen"]
    (qwen / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("page", "index"), CASES, ids=[f"{page.stem}-{index}" for page, index in CASES]
)
def test_an_example_runs(
    page: Path,
    index: int,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(models)
    monkeypatch.setenv("HOME", str(models))
    monkeypatch.setattr("pellucid.progress.FIRST_LINE", 3600.0)  # however slow the machine
    source = compile(examples(page)[index], f"{page.name}, example {index}", "exec")
    exec(source, {"__name__": "__main__"})
    out, err = capsys.readouterr()
    assert re.search(PRINTED[page.name][index], out, flags=re.DOTALL), out
    assert re.sub(r"generate: .*\n", "", err) == ""  # the progress of what takes more than a second


README = (ROOT / "README.md").read_text()


def test_the_picture_shows_the_commands_that_draw_it() -> None:
    picture = ET.parse(ROOT / "docs/terminal.svg")
    text = "".join(picture.getroot().itertext()).replace("\xa0", " ")
    shown = list(map(str.strip, text.splitlines()))
    script = (ROOT / "docs/write_terminal_picture.py").read_text()
    commands = re.findall(r"Session\(\s*['\"](.*)['\"]", script)
    typed = re.findall(r'"(.*)\\r"', script)
    assert len(commands) == len(typed) == 2
    for line in [*(f"$ {command}" for command in commands), *(f"> {line}" for line in typed)]:
        assert line in shown
    assert shown[shown.index(f"> {typed[0]}") + 1] == "The capital of France is Paris."


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) < 130
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
