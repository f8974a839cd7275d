"""Rules of the source tree that no linter checks: who includes Python headers, who imports the extension, no cycles
of imports, and first lines that say what a file is."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

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


def test_no_module_imports_itself_through_others() -> None:
    """Imports for annotations and within functions count too. `pellucid` itself gives the public names alone."""
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path for path in PYTHON
    }
    graph = {
        name: {each for each in imported_names(path) if each in modules}
        for name, path in modules.items()
        if path.name != "__init__.py"
    }
    assert "pellucid.scheduling.request" in graph["pellucid.scheduling.scheduler"]
    list(TopologicalSorter(graph).static_order())  # names the modules of a cycle


def imported_names(path: Path) -> Iterator[str]:
    for node in statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that stand below a node; an import is never a part of an expression."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


# What a file's first line begins with; of a file that needs another first line, its second one.
COMMENTS = {".py": '"""', ".h": "// ", ".cpp": "// ", ".js": "// ", ".css": "/* ", ".cmake": "# "}
DIRECTIVES = ("#!", "// @ts-check")
FOLDERS = ("src", "csrc", "tests", "benchmarks", "training", "tools", "docs")
OTHERS = {"vendor", "node_modules", "__pycache__"}  # folders of what others wrote


@pytest.mark.parametrize("folder", FOLDERS)
def test_first_lines_say_what_files_are(folder: str) -> None:
    untold = []
    for path in (ROOT / folder).rglob("*"):
        parts = set(path.relative_to(ROOT).parts)
        if path.suffix not in COMMENTS or parts & OTHERS:
            continue
        lines = path.read_text(encoding="utf-8").split("\n", 2)
        line = lines[1] if lines[0].startswith(DIRECTIVES) else lines[0]
        if not line.startswith(COMMENTS[path.suffix]) or len(line.split()) < 3:
            untold.append(f"{path.relative_to(ROOT)}: {line}")
    assert not untold
