"""safetensors files: everything that writers may do, and damage that must be detected."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pellucid.loading.safetensors_file import SafetensorsFile

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}
TENSORS = {
    "bias": np.arange(5, dtype=np.float64),
    "bf16": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
    "half": np.arange(4, dtype=np.float16),
    "single": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
}


def write(path: Path, header: object, data: bytes = bytes(16), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_tensors_are_views_of_the_file(path: Path) -> None:
    save_file(TENSORS, path)
    file = SafetensorsFile(path)
    assert set(file.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        loaded = file.tensor(name)
        assert loaded.dtype == tensor.dtype
        np.testing.assert_array_equal(loaded, tensor)
        assert not loaded.flags.owndata
        assert not loaded.flags.writeable


def test_data_need_not_be_aligned(path: Path) -> None:
    text = json.dumps({"a": A})
    for padding in range(4):
        write(path, (text + " " * padding).encode(), np.array([1.5, -2.0], np.float32).tobytes())
        loaded = SafetensorsFile(path).tensor("a")
        assert loaded.tolist() == [1.5, -2.0]
        assert loaded.flags.aligned


def test_scalars_and_empty_tensors(path: Path) -> None:
    save_file({"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32)}, path)
    file = SafetensorsFile(path)
    assert file.tensor("scalar").shape == ()
    assert file.tensor("scalar") == 2.5
    assert file.tensor("empty").shape == (0, 3)


def test_other_dtype(path: Path) -> None:
    save_file({"ids": np.arange(3)}, path)
    with pytest.raises(ValueError, match=r"tensor ids has dtype I64: supported are BF16, F16, F32"):
        SafetensorsFile(path).tensor("ids")


@pytest.mark.parametrize(
    ("header", "data", "length", "message"),
    [
        ({"a": A, "b": B}, bytes(15), None, r"the header describes \d+ bytes, the file has \d+"),
        ({"a": A, "b": B}, bytes(17), None, r"the header describes \d+ bytes, the file has \d+"),
        ({"a": A}, bytes(8), 10**7, "invalid header length"),
        ({"a": A}, bytes(8), 2**60, "header too large"),
        (b"garbage", bytes(16), None, "invalid JSON"),
        (b"\xff\xfe{}", bytes(16), None, "invalid UTF-8"),
        ([1], bytes(16), None, "invalid JSON"),
        ({"a": A, "b": A}, bytes(8), None, "invalid offset for tensor `[ab]`"),
        ({"a": A, "b": B | {"data_offsets": [12, 20]}}, bytes(20), None, "offset for tensor `b`"),
        ({"a": A | {"data_offsets": [8, 0]}}, bytes(8), None, "invalid offset for tensor `a`"),
        ({"a": A | {"shape": [3]}}, bytes(8), None, r"tensor a: F32 \[3\] does not fill bytes 0 to 8"),
        ({"a": A | {"shape": [-2]}}, bytes(8), None, "-2"),
        ({"a": A | {"shape": [2**40] * 2}}, bytes(8), None, "overflow"),
        ({"a": A | {"dtype": "F33"}}, bytes(8), None, "F33"),
        (b'{"a":%s,"a":%s}' % ((json.dumps(A).encode(),) * 2), bytes(8), None, "names a twice"),
    ],
)  # fmt: skip
def test_damaged_file(
    path: Path, header: object, data: bytes, length: int | None, message: str
) -> None:
    write(path, header, data, length)
    with pytest.raises(ValueError, match=message) as error:
        SafetensorsFile(path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("content", [b"", b"123", bytes(8)])
def test_shorter_than_a_header(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged safetensors file"):
        SafetensorsFile(path)


def test_no_file(path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.safetensors: no such file"):
        SafetensorsFile(path)


def test_directory(path: Path) -> None:
    path.mkdir()
    with pytest.raises(
        ValueError, match=r"model\.safetensors: must be a regular file, not a directory"
    ):
        SafetensorsFile(path)


def open_all(path: Path) -> dict[str, Any] | str:
    """All tensors by name, or the message of the refusal."""
    try:
        file = SafetensorsFile(path)
        return {name: file.tensor(name) for name in file.tensors}
    except ValueError as error:
        return str(error)


@given(st.data())
def test_any_flipped_bytes_are_refused_or_are_the_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "model.safetensors"
    save_file(TENSORS, path)
    content = bytearray(path.read_bytes())
    data_start = 8 + int.from_bytes(content[:8], "little")
    in_header = st.integers(0, data_start - 1)
    anywhere = st.integers(0, len(content) - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(in_header | anywhere)] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)

    opened = open_all(path)
    if isinstance(opened, str):
        assert opened.startswith(f"{path}: ")
    else:  # every byte of data belongs to one tensor, and is as it stands in the file
        tensors = SafetensorsFile(path).tensors
        in_order = sorted(opened, key=lambda name: tensors[name].start)
        data_start = 8 + int.from_bytes(content[:8], "little")
        assert b"".join(opened[name].tobytes() for name in in_order) == content[data_start:]


@given(st.data())
def test_any_truncation_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "model.safetensors"
    save_file(TENSORS, path)
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    opened = open_all(path)
    assert isinstance(opened, str)
    assert opened.startswith(f"{path}: ")
