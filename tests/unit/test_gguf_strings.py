"""Strings of arrays are found in bulk where they are short, and one by one elsewhere: the same ones."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from pellucid.loading import gguf_file, gguf_strings
from pellucid.loading.gguf_file import GgufFile
from pellucid.loading.gguf_strings import find_short_strings
from support.gguf_files import finish

STRINGS = st.lists(
    st.one_of(
        st.text(max_size=20),  # empty ones, and such with NULs
        st.sampled_from(["a" * 255, "a" * 256, "\0" * 8, "ü" * 300, "Ġthe"]),
    ),
    min_size=1,
    max_size=60,
)


def written(folder: Path, strings: list[str]) -> Path:
    path = folder / "strings.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_array("first", strings)
    writer.add_uint32("between", 7)
    writer.add_array("second", strings[::-1])
    finish(writer)
    return path


@given(strings=STRINGS)
@pytest.mark.parametrize(("window", "few"), [(1 << 20, 4096), (64, 2), (300, 1)])
def test_every_string_is_found(
    tmp_path_factory: pytest.TempPathFactory, window: int, few: int, strings: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_strings, "_WINDOW_BYTES", window)
        patch.setattr(gguf_file, "_FEW_STRINGS", few)
        metadata = GgufFile(written(tmp_path_factory.mktemp("gguf"), strings)).metadata
    assert metadata["first"] == strings and metadata["second"] == strings[::-1]
    assert metadata["between"] == 7


def test_short_strings_end_before_another_one() -> None:
    parts = [b"ab", b"c" * 255, "ü".encode(), b"", b"d"]
    data = np.frombuffer(b"".join(struct.pack("<Q", len(part)) + part for part in parts), np.uint8)
    begins, ends = find_short_strings(data, 0, len(parts), len(data))
    assert [bytes(data[a:b]) for a, b in zip(begins, ends, strict=True)] == parts[:3]
    begins, _ = find_short_strings(data, 0, 2, len(data))
    assert len(begins) == 2
    begins, _ = find_short_strings(data, 0, len(parts), 10 + 8 + 254)  # the second one does not fit
    assert len(begins) == 1
