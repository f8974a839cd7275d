"""Commands in the documents: there is each command and script that they name, with the options that they give it."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.exceptions import TyperException

from pellucid.cli.app import all_verbs, make_command

ROOT = Path(__file__).parents[2]
HISTORY = ("CHANGELOG.md", "docs/LOG.md")  # and decisions: they tell of what there was
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    (?:pellucid|python) .*$", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:\$ |podman run .*?)?(pellucid (?!\[)|python \w+/)\S")


def documents() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    pages += [*(ROOT / "benchmarks").glob("*.md"), *(ROOT / "training").rglob("*.md")]
    return [page for page in pages if str(page.relative_to(ROOT)) not in HISTORY]


def commands(page: Path) -> Iterator[str]:
    """What a page tells its readers to type, in code of any form, one line each."""
    text = page.read_text(encoding="utf-8")
    lines = [line for fence in FENCE.findall(text) for line in joined(fence).splitlines()]
    text = FENCE.sub("", text)
    lines += [line.strip() for line in INDENTED.findall(text)]
    lines += [" ".join(code.split()) for code in INLINE.findall(text)]
    for line in lines:
        if (found := COMMAND.match(line)) is not None and "[OPTIONS]" not in line:
            yield line[found.start(1) :]


def joined(text: str) -> str:
    return re.sub(r"\\\n\s*", "", text)


CASES = [
    pytest.param(line, id=f"{page.relative_to(ROOT)}: {line}")
    for page in documents()
    for line in dict.fromkeys(commands(page))
]


def test_there_are_commands() -> None:
    assert len(CASES) > 60


@pytest.mark.parametrize("line", CASES)
def test_a_command_is_one_that_there_is(line: str) -> None:
    words = shlex.split(re.sub(r"[\[\]]", " ", line), comments=True)
    program, first, *others = words
    if program == "python":
        script = ROOT / first
        assert (script / "__main__.py" if script.is_dir() else script).exists()
        folder = script if script.is_dir() else script.parent  # scripts share options
        sources = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
        for option in set(re.findall(r"--[a-z][a-z-]*", line)) - {"--help"}:
            assert f'"{option}"' in sources, option
    elif not first.startswith("-"):
        assert first in all_verbs()
        problem = problem_of(first, others)
        # `pellucid serve` in a sentence is the name of the command; with words behind it, it is to be typed.
        assert not problem or (not others and "Missing argument" in problem), problem


command_of = cache(lambda verb: make_command([verb]).commands[verb])


def problem_of(verb: str, words: list[str]) -> str:
    """What is wrong with the words behind a verb; empty if nothing is."""
    try:
        command_of(verb).make_context(verb, words or ["--"])
    except TyperException as error:
        return str(error.format_message())
    return ""
