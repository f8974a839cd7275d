"""--help: fast, complete, and the same as docs/cli.md."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pellucid import __version__
from pellucid.cli.app import all_verbs
from support.command_line import CommandLine

ROOT = Path(__file__).parents[2]


def modules_after_main(*arguments: str) -> set[str]:
    report = (
        f"from pellucid.cli import main; main({list(arguments)!r});"
        "import json, sys; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", report]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(json.loads(done.stderr))


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("--version",)])
def test_help_waits_for_nothing_heavy(arguments: tuple[str, ...]) -> None:
    heavy = {"numpy", "tokenizers", "jinja2", "huggingface_hub", "pellucid.llm", "matplotlib"}
    assert modules_after_main(*arguments).isdisjoint(heavy)


def test_version(pellucid: CommandLine) -> None:
    assert pellucid("--version").out == f"pellucid {__version__}\n"


def test_help_groups_the_options(pellucid: CommandLine) -> None:
    ran = pellucid("run", "--help")
    assert ran.status == 0
    for title in ("When to stop", "Sampling", "Model", "Output"):
        assert f"\n\n{title}\n" in ran.out


def test_no_verb_shows_the_help_and_is_an_error(pellucid: CommandLine) -> None:
    ran = pellucid()
    assert (ran.status, ran.err) == (2, "")
    assert "compare" in ran.out


def test_an_unknown_verb(pellucid: CommandLine) -> None:
    ran = pellucid("walk")
    assert (ran.status, ran.err) == (
        2,
        "error: there is no command 'walk'; there are " + ", ".join(all_verbs()) + "\n",
    )


def test_the_written_reference_is_what_the_declarations_say() -> None:
    script = ROOT / "docs" / "write_cli_reference.py"
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
