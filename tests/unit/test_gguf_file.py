"""The header of a GGUF file: what is read, and everything that is refused."""

import itertools
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from pellucid.loading import gguf_file
from pellucid.loading.gguf_file import GgufFile, HeaderEndsEarlyError
from support.gguf_files import finish
from support.refusals import check_refusals

U32, STRING, ARRAY = 4, 8, 9


def header(*parts: bytes, tensors: int = 0, entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + b"".join(parts)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: bytes, value_type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + value


def tensor(
    name: bytes, shape: tuple[int, ...] = (32,), type_id: int = Type.F32, offset: int = 0
) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


# A value of each type, as a writer names it, and as llama.cpp prints it.
VALUES = {
    "u8": ("uint8", 200),
    "i8": ("int8", -100),
    "u16": ("uint16", 60_000),
    "i16": ("int16", -30_000),
    "u32": ("uint32", 4_000_000_000),
    "i32": ("int32", -2_000_000_000),
    "u64": ("uint64", 2**60),
    "i64": ("int64", -(2**60)),
    "f32": ("float32", 1.5),
    "f64": ("float64", 0.1),
    "bool": ("bool", True),
    "str": ("string", "naïve 你好"),
    "arr[str,3]": ("array", ["a", "", "ü"]),
    "arr[i32,3]": ("array", [1, -2, 3]),
    "arr[bool,2]": ("array", [True, False]),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with VALUES under the names of their types, and two tensors."""
    path = tmp_path_factory.mktemp("gguf") / "good.gguf"
    writer = GGUFWriter(path, "llama")
    for key, (kind, value) in VALUES.items():
        getattr(writer, f"add_{kind}")(key, value)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.arange(34, dtype=np.uint8).reshape(1, 34), raw_dtype=Type.Q8_0)
    finish(writer)
    return path


def test_metadata_and_its_types(good: Path) -> None:
    file, architecture = GgufFile(good), "general.architecture"
    values = {key: value for key, (_, value) in VALUES.items()}
    assert file.metadata == {architecture: "llama", **values}
    assert file.value_types == {architecture: "str"} | {key: key for key in VALUES}


def test_tensors(good: Path) -> None:
    file = GgufFile(good)
    assert file.tensors["one"].shape == (2, 3)
    assert file.rows("one").view(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.tensors["two"].shape == (1, 32) and file.tensors["two"].type == Type.Q8_0
    assert file.rows("two").tolist() == [list(range(34))]


def test_the_gguf_library_finds_the_tensors_at_the_same_places(good: Path) -> None:
    file = GgufFile(good)
    for tensor in GGUFReader(good).tensors:
        info = file.tensors[tensor.name]
        assert (info.start, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert info.shape == tuple(map(int, tensor.shape[::-1]))


def test_arrays_are_read_when_they_are_asked_for(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    for name in ("_strings", "_numbers"):
        method = getattr(gguf_file._Header, name)
        monkeypatch.setattr(
            gguf_file._Header,
            name,
            lambda *args, method=method: (read.append(args[-1]), method(*args))[1],
        )
    metadata = GgufFile(good).metadata
    assert list(metadata)[-3:] == [*VALUES][-3:] and not read
    strings = "arr[str,3]"
    assert metadata[strings] == ["a", "", "ü"] and metadata[strings][0] == "a"
    assert read == [strings]
    metadata.clear()
    assert read == [strings] and not metadata


@pytest.mark.parametrize("lengths", [(3, 0, 255), (3, 256, 0), (70_000, 1), (1, 1 << 17), ()])
def test_strings_of_any_length(lengths: tuple[int, ...], tmp_path: Path) -> None:
    strings = [bytes([97 + i]) * length for i, length in enumerate(lengths)]
    array = struct.pack("<IQ", STRING, len(strings)) + b"".join(map(text, strings))
    path = tmp_path / "strings.gguf"
    entries = entry(b"k", ARRAY, array) + entry(b"after", U32, struct.pack("<I", 5))
    path.write_bytes(header(entries, entries=2))
    assert GgufFile(path).metadata == {"k": [each.decode() for each in strings], "after": 5}


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (struct.pack("<IQ", STRING, 2) + text(b"a") + text(b"\xff"), "k is not UTF-8"),
        (struct.pack("<IQ", 7, 2) + b"\1\2", "k is a truth value of 2"),
    ],
)
def test_damage_inside_of_an_array_is_named_when_it_is_asked_for(
    tmp_path: Path, array: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header(entry(b"k", ARRAY, array), entries=1))
    metadata = GgufFile(path).metadata
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"bad\.gguf: damaged GGUF file: {message}"):
            metadata["k"]


def test_tensors_of_a_foreign_type_end_where_the_next_begins(tmp_path: Path) -> None:
    path = tmp_path / "foreign.gguf"
    tensors = [tensor(b"a", type_id=141), tensor(b"b", offset=96), tensor(b"c", (33,), 300, 224)]
    tensors.append(tensor(b"d", type_id=153, offset=320))
    path.write_bytes(header(*tensors, bytes(400), tensors=4))
    file = GgufFile(path)
    assert file.tensors["a"].num_bytes == 96 and file.tensors["d"].end == path.stat().st_size
    a, b, c, d = (info.type.name for info in file.tensors.values())
    assert (a, b, c) == ("IQ6_K of ik_llama.cpp", "F32", "300, which llama.cpp does not have")
    assert d == "IQ2_KT of ik_llama.cpp"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.gguf: no such file"):
        GgufFile(tmp_path / "x.gguf")


def opened_or_refused(path: Path) -> GgufFile | None:
    """Any other exception than a ValueError that names the file is a failure."""
    try:
        return GgufFile(path)
    except ValueError as error:
        if path.name not in str(error):
            raise AssertionError(f"{error}: which file?") from error
        return None


# -- damage ----------------------------------------------------------------------------------------


def test_every_truncation_is_refused_by_name(good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    needed = max(info.end for info in GgufFile(good).tensors.values())
    path = tmp_path / "short.gguf"
    header_bytes = min(info.start for info in GgufFile(good).tensors.values())
    for length in range(needed):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"short\.gguf: damaged GGUF file: ") as error:
            GgufFile(path)
        if length >= header_bytes:
            assert type(error.value) is ValueError, length  # more of the header would not help
        elif 0 < length < header_bytes - 32:  # the header, without what fills it up
            assert type(error.value) is HeaderEndsEarlyError, length


@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_bytes_are_refused_or_harmless(good: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(good.read_bytes())
    for position, value in changes:
        data[position % len(data)] = value
    path = good.with_name("damaged.gguf")
    path.write_bytes(data)
    file = opened_or_refused(path)
    for name, info in file.tensors.items() if file is not None else ():
        assert file.rows(name).size == info.num_bytes


@given(st.binary(max_size=400))
def test_noise_is_refused(good: Path, noise: bytes) -> None:
    path = good.with_name("noise.gguf")
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + noise)
    opened_or_refused(path)


@pytest.mark.parametrize("form", ["<I", "<Q"])
def test_absurd_numbers_anywhere_are_refused_or_harmless(good: Path, form: str) -> None:
    """Counts, lengths, types, dimensions, offsets: whatever stands at a byte of the header."""
    data = good.read_bytes()
    header_end = min(info.start for info in GgufFile(good).tensors.values())
    path = good.with_name("absurd.gguf")
    size = struct.calcsize(form)
    tracemalloc.start()
    numbers = itertools.cycle((0, 2**31 - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1))
    for position, number in zip(range(4, header_end - size), numbers, strict=False):
        path.write_bytes(data[:position] + struct.pack(form, number) + data[position + size :])
        opened_or_refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0, 1, 2, 32, 64, 2**32, 2**63]), min_size=1, max_size=5),
            st.sampled_from([Type.F32, Type.Q4_0, Type.Q4_K, Type.IQ1_S, 999]),
            st.sampled_from([0, 32, 64, 128, 256, 2**40, 2**64 - 32]),
        ),
        max_size=4,
    )
)
def test_no_table_of_tensors_makes_them_overlap(
    good: Path, described: list[tuple[list[int], int, int]]
) -> None:
    path = good.with_name("table.gguf")
    tensors = [
        tensor(bytes([97 + i]), tuple(shape), type_id, offset)
        for i, (shape, type_id, offset) in enumerate(described)
    ]
    path.write_bytes(header(*tensors, bytes(1000), tensors=len(tensors)))
    if (file := opened_or_refused(path)) is None:
        return
    places = sorted((info.start, info.end) for info in file.tensors.values())
    ends = [0, *(end for _, end in places)]
    assert all(start >= end for (start, _), end in zip(places, ends, strict=False))
    assert ends[-1] <= path.stat().st_size


DAMAGED: list[bytes] = [
    b"",
    b"PK\3\4" + bytes(60),
    header(version=1),
    header(version=3 << 24),
    header(tensors=2**63),
    header(tensors=2**16 + 1),
    header(tensors=2**16),
    header(entries=2**16 + 1),
    header(entries=2**16),
    header(text(b"a" * 1025), entries=1),
    header(text(b"a" * 1024), entries=1),
    header(text(b"\xff"), entries=1),
    header(entry(b"k", 13, b""), entries=1),
    header(entry(b"k", 7, b"\2"), entries=1),
    header(entry(b"k", STRING, struct.pack("<Q", 2**62)), entries=1),
    header(entry(b"k", ARRAY, struct.pack("<IQ", U32, 2**22 + 1)), entries=1),
    header(entry(b"k", ARRAY, struct.pack("<IQ", U32, 2**20)), entries=1),
    header(entry(b"k", ARRAY, struct.pack("<IQ", STRING, 2**22)), entries=1),
    header(entry(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1)), entries=1),
    header(*[entry(b"k", U32, bytes(4))] * 2, entries=2),
    *(
        header(entry(b"general.alignment", U32, struct.pack("<I", wrong)), entries=1)
        for wrong in (4, 48, 2**17)
    ),
    *(
        header(
            entry(b"general.alignment", U32, struct.pack("<I", alignment)),
            tensor(b"t"),
            entries=1,
            tensors=1,
        )
        for alignment in (8, 2**16)
    ),
    header(entry(b"general.alignment", STRING, text(b"32")), entries=1),
    header(tensor(b"t", ()), tensors=1),
    header(tensor(b"t", (1,) * 5), tensors=1),
    header(tensor(b"t", (0,)), tensors=1),
    header(tensor(b"t", type_id=999), tensors=1),
    header(tensor(b"t", (33,), Type.Q8_0), tensors=1),
    header(tensor(b"t", (2**63 - 1,) * 4), tensors=1),
    header(tensor(b"t"), tensors=1),
    header(tensor(b"t", offset=32), bytes(500), tensors=1),
    header(tensor(b"a"), tensor(b"b", offset=64), bytes(900), tensors=2),
    header(tensor(b"a"), tensor(b"b", offset=160), bytes(900), tensors=2),
    header(tensor(b"a"), tensor(b"a", offset=128), bytes(900), tensors=2),
]


def test_damage_is_named_in_bounded_time_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"

    def open_damaged(data: bytes) -> None:
        path.write_bytes(data)
        tracemalloc.start()
        start = time.process_time()
        try:
            GgufFile(path)
        finally:
            assert time.process_time() - start < 1
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
            tracemalloc.stop()

    check_refusals("gguf_damage", DAMAGED, open_damaged, name=lambda _: "", hidden=tmp_path)
