"""The identity of a checkpoint: its content, wherever and whenever its files were written."""

import os
import shutil
from pathlib import Path

import pytest

from pellucid.loading import file_digests
from pellucid.loading.cache_file import cache_path
from pellucid.loading.file_digests import file_digest, kept_digests
from pellucid.loading.weights_identity import weights_identity

LONG_AGO = (10**18, 10**18)  # nanoseconds: of the last access and the last change


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digests, "SETTLED_NANOSECONDS", 0)  # an inode cannot be set back


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read whole."""
    names: list[str] = []

    def read(path: Path) -> str:
        names.append(path.name)
        return file_digest(path)

    monkeypatch.setattr(file_digests, "file_digest", read)
    return names


def test_a_copy_has_the_same_identity_and_any_other_bit_another_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    identity = weights_identity(checkpoint)
    copy = tmp_path / "elsewhere"
    shutil.copytree(checkpoint, copy)
    weights = copy / "model.safetensors"
    os.utime(weights, ns=LONG_AGO)
    assert weights_identity(copy) == identity
    (copy / "README.md").write_text("no file that is loaded")
    assert weights_identity(copy) == identity
    data = bytearray(weights.read_bytes())
    data[100_001] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=LONG_AGO)  # size and time as before: the inode's time tells
    assert weights_identity(copy) != identity
    weights.write_bytes((checkpoint / "model.safetensors").read_bytes())
    weights.rename(copy / "other.safetensors")
    assert weights_identity(copy) != identity


def test_a_renamed_gguf_file_is_the_same_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" * 100)
    identity = weights_identity(tmp_path / "a.gguf")
    assert weights_identity((tmp_path / "a.gguf").rename(tmp_path / "b.gguf")) == identity


def test_listed_digests_are_taken_from_sha256sums_and_others_are_computed_once(
    checkpoint: Path, reads: list[str]
) -> None:
    identity = weights_identity(checkpoint)
    assert sorted(reads) == ["config.json", "model.safetensors"]
    assert weights_identity(checkpoint) == identity and len(reads) == 2
    cache_path("digests.json").unlink()
    digest = file_digest(checkpoint / "model.safetensors")
    (checkpoint / "SHA256SUMS").write_text(f"{digest.upper()}  model.safetensors\n")
    assert weights_identity(checkpoint) == identity
    assert reads[2:] == ["config.json"]


def test_a_file_that_has_just_changed_is_read_again(
    checkpoint: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second write within the same tick of the file system's clock changes no time."""
    monkeypatch.setattr(file_digests, "SETTLED_NANOSECONDS", 10**12)
    for _ in range(2):
        kept_digests([checkpoint / "config.json"])
    assert len(reads) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"1": 2}', '{"1:2:3:4:5": "no digest"}'])
def test_a_damaged_cache_file_costs_time_alone(checkpoint: Path, content: str) -> None:
    identity = weights_identity(checkpoint)
    cache_path("digests.json").write_text(content)
    assert weights_identity(checkpoint) == identity


def test_a_cache_that_cannot_be_written_costs_time_alone(
    checkpoint: Path, reads: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert weights_identity(checkpoint) == weights_identity(checkpoint)
    assert len(reads) == 4
