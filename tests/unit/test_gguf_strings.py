"""Strings of a GGUF file and tokens among them, found natively."""

import struct

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from pellucid.backends.native import Texts, TokenTable, pass_strings
from pellucid.loading.gguf_arrays import GgufMetadataValues
from pellucid.loading.gguf_file import GgufFile
from support.gguf_files import finish

STRINGS = st.lists(
    st.one_of(
        st.text(max_size=20),  # empty ones, and such with NULs
        st.sampled_from(["a" * 255, "a" * 256, "\0" * 8, "ü" * 300, "Ġthe"]),
    ),
    min_size=1,
    max_size=60,
)


@given(strings=STRINGS)
def test_every_string_is_found(
    tmp_path_factory: pytest.TempPathFactory, strings: list[str]
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "strings.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_array("first", strings)
    writer.add_uint32("between", 7)
    writer.add_array("second", strings[::-1])
    finish(writer)
    metadata = GgufFile(path).metadata
    assert isinstance(metadata, GgufMetadataValues)
    array = metadata.array("first")
    assert isinstance(array, Texts)
    assert [array[i] for i in range(len(array))] == metadata["first"] == strings
    assert array.sizes(np.ones(len(strings), bool)) == sorted({*map(len, strings)})
    assert metadata.array("first") is None  # a list by now
    assert metadata["second"] == strings[::-1] and metadata["between"] == 7


def test_strings_end_where_the_file_does() -> None:
    data = np.frombuffer(b"".join(struct.pack("<Q", n) + b"a" * n for n in (2, 0, 5)), np.uint8)
    ends = [10, 18, 31]
    for limit in range(len(data) + 1):
        count = sum(end <= limit for end in ends)
        assert pass_strings(data, 0, 3, limit) == (count, [0, *ends][count])
    assert pass_strings(data, 0, 1, 31) == (1, 10)
    huge = np.frombuffer(struct.pack("<Q", 2**64 - 1) + b"a", np.uint8)
    assert pass_strings(huge, 0, 1, 9) == (0, 0)


@given(st.lists(st.binary(max_size=6) | st.text(max_size=3).map(str.encode), max_size=5))
@pytest.mark.parametrize(
    "sample", [b"", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc1\x81", b"\xe0\x9f\xbf"]
)
def test_what_is_no_utf8_is_what_python_says(sample: bytes, parts: list[bytes]) -> None:
    parts = [*parts, sample]
    data = np.frombuffer(b"".join(struct.pack("<Q", len(each)) + each for each in parts), np.uint8)
    try:
        expected = [each.decode() for each in parts]
    except UnicodeDecodeError as error:
        with pytest.raises(UnicodeDecodeError, match=error.reason):
            Texts.read(data, 0, len(parts))
    else:
        assert Texts.read(data, 0, len(parts)).tolist() == expected


@given(st.lists(st.tuples(st.text("abé", max_size=3), st.booleans()), max_size=60))
def test_tokens_are_found_by_their_texts(drawn: list[tuple[str, bool]]) -> None:
    texts, flags = [text for text, _ in drawn], [flag for _, flag in drawn]
    table = TokenTable(Texts(texts), np.array(flags, bool))
    places: dict[str, list[int]] = {}
    for place, (text, is_token) in enumerate(drawn):
        if is_token and text:
            places.setdefault(text, []).append(place)
    first = {text: found[0] for text, found in places.items()}
    assert table.repeated == min((p[0] for p in places.values() if len(p) > 1), default=None)
    assert len(table) == len(first)
    assert table.among([*texts, "c", "\ud800"]) == first
    assert all(table.find(text) == first.get(text) for text in (*texts, "c", "\ud800"))
