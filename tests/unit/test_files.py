"""Reading the files of a checkpoint: regular files only, within limits of size."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from pellucid.loading.files import MappedFile, open_regular, read_bytes

PAGES = 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(np.arange(PAGES * mmap.PAGESIZE, dtype=np.uint64).astype(np.uint8).tobytes())
    return path


def resident_pages(path: Path) -> int:
    """Of the mapping of `path` in this process."""
    blocks = Path("/proc/self/smaps").read_text().split(str(path))[1]
    [size] = [line.split()[1] for line in blocks.splitlines() if line.startswith("Rss:")][:1]
    return int(size) * 1024 // mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is resident")
def test_released_pages_are_given_back_and_can_be_read_again(file: Path) -> None:
    mapped = MappedFile(file)
    expected = mapped.bytes.sum(dtype=np.int64)
    assert resident_pages(file) == PAGES
    mapped.release(0, PAGES * mmap.PAGESIZE)
    assert resident_pages(file) == 0
    assert mapped.bytes.sum(dtype=np.int64) == expected


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is resident")
def test_pages_that_neighbours_share_stay(file: Path) -> None:
    mapped = MappedFile(file)
    mapped.bytes.sum()
    mapped.release(1, 3 * mmap.PAGESIZE - 1)
    assert resident_pages(file) == PAGES - 1
    mapped.release(5 * mmap.PAGESIZE + 1, 6 * mmap.PAGESIZE)
    assert resident_pages(file) == PAGES - 1


def test_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"config\.json: must be a regular file, not a FIFO"):
        open_regular(tmp_path / "config.json")


def test_link_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"config\.json: must be a regular file, not a device"):
        read_bytes(tmp_path / "config.json", 100)


def test_directory_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a regular file, not a directory"):
        open_regular(tmp_path)
    with pytest.raises(ValueError, match="no such file"):
        open_regular(tmp_path / "missing")


def test_file_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"x" * 100)
    assert read_bytes(path, 100) == b"x" * 100
    with pytest.raises(ValueError, match=r"config\.json: has 100 bytes: at most 99 are allowed"):
        read_bytes(path, 99)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="a file of unknown size")
def test_file_that_does_not_tell_its_size() -> None:
    with pytest.raises(ValueError, match="at most 10 are allowed"):
        read_bytes(Path("/proc/self/status"), 10)


def test_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 123\n")
    with pytest.raises(ValueError, match=r"model\.safetensors: is a pointer of Git LFS.*lfs pull"):
        MappedFile(path)
