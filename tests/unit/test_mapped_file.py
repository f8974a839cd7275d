import mmap
from pathlib import Path

import numpy as np
import pytest

from pellucid.loading.mapped_file import MappedFile

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
