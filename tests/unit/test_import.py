"""`import pellucid` imports no heavy library, whatever is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pellucid
from support.checkpoints import write_checkpoint
from support.gguf_files import write_gguf

HEAVY = {
    "fastapi",
    "gguf",
    "matplotlib",
    "scipy",
    "starlette",
    "torch",
    "triton",
    "transformers",
    "uvicorn",
    "uvloop",
}


def modules_after(statement: str) -> set[str]:
    """Top-level modules loaded by `statement` in a fresh interpreter."""
    report = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", report], check=True, capture_output=True, text=True
    ).stdout
    return {name.partition(".")[0] for name in json.loads(output.splitlines()[-1])}


def test_import_loads_nothing_heavy() -> None:
    loaded = modules_after("import pellucid")
    assert "pellucid" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_public_names_load_nothing_heavy() -> None:
    assert modules_after("from pellucid import *").isdisjoint(HEAVY)


def test_command_line_loads_nothing_heavy() -> None:
    assert modules_after("import pellucid.cli.app").isdisjoint(HEAVY)


def test_a_server_starts_without_what_few_calls_need() -> None:
    """Each of these would add a tenth to the time of a start."""
    few = {"httpx", "prometheus_client", "llguidance", "opentelemetry", "rich"}
    assert modules_after("import pellucid.server.app").isdisjoint(few)


def test_a_header_is_checked_without_what_a_model_needs(tmp_path: Path) -> None:
    """Each of these would add a tenth to the time of `pellucid check FILE`."""
    file = tmp_path / "tiny.gguf"
    write_gguf(file, write_checkpoint(tmp_path / "tiny", "llama"))
    loaded = modules_after(
        f"from pellucid.cli import main\nassert main(['check', {str(file)!r}]) == 0"
    )
    few = {"gguf", "huggingface_hub", "jinja2", "regex", "safetensors", "tokenizers"}
    assert loaded.isdisjoint(few)


def test_dir_lists_the_public_names() -> None:
    assert dir(pellucid) == sorted([*pellucid.__all__, "__version__"])
    for name in pellucid.__all__:
        assert getattr(pellucid, name).__name__ == name
    with pytest.raises(AttributeError, match="'pellucid' has no attribute 'Nothing'"):
        _ = pellucid.Nothing
