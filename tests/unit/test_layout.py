"""Rules of the source tree that no linter checks: who includes Python headers, who imports the extension."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CSRC = sorted(path for path in (ROOT / "csrc").rglob("*") if path.is_file())
PYTHON = sorted((ROOT / "src").rglob("*.py"))


def test_only_bindings_know_python() -> None:
    """Everything else in csrc can be read, sanitized and tested without an interpreter."""
    pattern = re.compile(r"#\s*include\s*[<\"](nanobind|Python\.h|pybind11)")
    knowing = {path.parent.name for path in CSRC if pattern.search(path.read_text())}
    assert knowing == {"bindings"}


def test_only_native_imports_the_extension() -> None:
    pattern = re.compile(
        r"^\s*(from|import) pellucid\._native|^\s*from pellucid import .*_native", re.MULTILINE
    )
    importing = [path.name for path in PYTHON if pattern.search(path.read_text())]
    assert importing == ["native.py"]
