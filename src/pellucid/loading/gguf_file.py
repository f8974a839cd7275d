"""One GGUF file: its metadata, and the places of its tensors.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The header is
read here and not by the gguf library, which trusts it, and which takes 7 s for the 300 000 strings of
a large vocabulary.
"""

import struct
from collections.abc import Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.native import Texts, pass_strings
from pellucid.loading.files import MappedFile, open_regular
from pellucid.loading.gguf_arrays import GgufMetadataValues, Numbers
from pellucid.loading.gguf_types import (
    BLOCK_SIZES,
    ForeignType,
    TensorType,
    ValueType,
    tensor_type,
)
from pellucid.loading.mapped_tensors import PlacedTensor, TensorFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)

MAX_HEADER_BYTES = 256 << 20
MAX_ENTRIES = 1 << 16  # of metadata, and tensors
MAX_ARRAY_LENGTH = 1 << 22  # the largest vocabularies have 2^18 tokens
MAX_NAME_BYTES = 1 << 10
MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 16

_NUMBERS: Mapping[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
    ValueType.BOOL: "B",
}
_TYPE_NAMES: Mapping[ValueType, str] = {
    ValueType.UINT8: "u8",
    ValueType.INT8: "i8",
    ValueType.UINT16: "u16",
    ValueType.INT16: "i16",
    ValueType.UINT32: "u32",
    ValueType.INT32: "i32",
    ValueType.FLOAT32: "f32",
    ValueType.UINT64: "u64",
    ValueType.INT64: "i64",
    ValueType.FLOAT64: "f64",
    ValueType.BOOL: "bool",
    ValueType.STRING: "str",
    ValueType.ARRAY: "arr",
}


class HeaderEndsEarlyError(ValueError):
    """A file ends within its header: it is cut off, or it is only the beginning of a file."""


class GgufTensorInfo(PlacedTensor, frozen=True):
    """What the header says about a tensor; GGUF's own order of a shape is the reverse."""

    type: TensorType

    @property
    def type_name(self) -> str:
        return self.type.name


class GgufFile(TensorFile[GgufTensorInfo]):
    """A GGUF file, mapped into memory. It must not be truncated while it is open.

    Args:
        path: the file.

    Attributes:
        metadata: values by key.
        value_types: of the metadata, as llama.cpp prints them: "u32", "arr[str,248320]".
        tensors: by name.

    Raises:
        ValueError: it is missing or damaged. Counts, lengths, types, offsets and alignment are checked
            against the length of the file before anything is read or allocated for them. If it ends within
            its header, a `HeaderEndsEarlyError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                if not file.read(1):
                    raise ValueError(f"{path}: damaged GGUF file: the file is empty")
            self._file = MappedFile(path)
        except OSError as error:
            raise ValueError(f"{path}: cannot be mapped: {error}") from None
        header = _Header(path, self._file)
        self.metadata: MutableMapping[str, Any] = header.metadata
        self.value_types: dict[str, str] = header.value_types
        self.tensors = header.tensors

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of the tensor `name`, in rows of its last axis: [..., bytes of a row]."""
        info = self.tensors[name]
        return self._file.bytes[info.start : info.end].reshape(*info.shape[:-1], -1)


class _Header:
    """Reads a header from front to back; `_at` is the next byte."""

    def __init__(self, path: Path, file: MappedFile) -> None:
        self._path = path
        self._at = 0
        self._view, self._bytes = file.view, file.bytes
        self._file_bytes = len(self._view)
        self._read()

    def _read(self) -> None:
        if (magic := bytes(self._take(4, "the magic number"))) != MAGIC:
            raise self._error(f"it begins with {magic!r}: a GGUF file begins with {MAGIC!r}")
        version = self._number("I", "the version")
        if version not in VERSIONS:
            order = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise self._error(f"it is {order}: supported are versions 2 and 3, little-endian")
        num_tensors = self._count("the number of tensors", MAX_ENTRIES)
        num_entries = self._count("the number of metadata entries", MAX_ENTRIES)

        self.metadata = GgufMetadataValues()
        self.value_types: dict[str, str] = {}
        for _ in range(num_entries):
            key = self._string("a metadata key", MAX_NAME_BYTES)
            if key in self.metadata:
                raise self._error(f"it names {key} twice")
            value_type = self._value_type(key)
            if value_type == ValueType.ARRAY:
                self._add_array(key)
            else:
                self.value_types[key] = _TYPE_NAMES[value_type]
                self.metadata[key] = self._value(value_type, key)

        described = [self._describe_tensor() for _ in range(num_tensors)]
        self.tensors = self._place_tensors(described)

    def _describe_tensor(self) -> tuple[str, TensorType, tuple[int, ...], int, int | None]:
        """Name, type, shape, offset and bytes of the next tensor; bytes of a foreign type are unknown."""
        name = self._string("a tensor's name", MAX_NAME_BYTES)
        num_dimensions = self._number("I", f"the dimensions of tensor {name}")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._error(
                f"tensor {name} has {num_dimensions} dimensions: must have 1 to {MAX_DIMENSIONS}"
            )
        shape = struct.unpack(
            f"<{num_dimensions}Q", self._take(8 * num_dimensions, f"the shape of tensor {name}")
        )[::-1]
        type_id = self._number("I", f"the type of tensor {name}")
        offset = self._number("Q", f"the offset of tensor {name}")
        if min(shape) < 1:
            raise self._error(f"tensor {name} has shape {list(shape)}: sizes must be at least 1")
        kind = tensor_type(type_id)
        if isinstance(kind, ForeignType):
            return name, kind, shape, offset, None
        block_size, block_bytes = BLOCK_SIZES[kind]
        if shape[-1] % block_size:
            raise self._error(
                f"tensor {name} has rows of {shape[-1]} numbers: {kind.name} has blocks of "
                f"{block_size}"
            )
        num_bytes = block_bytes
        for size in (shape[-1] // block_size, *shape[:-1]):
            num_bytes *= size  # Python's integers do not overflow
        return name, kind, shape, offset, num_bytes

    def _place_tensors(
        self, described: list[tuple[str, TensorType, tuple[int, ...], int, int | None]]
    ) -> dict[str, GgufTensorInfo]:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        is_power_of_two = (
            isinstance(alignment, int) and alignment > 0 and not alignment & (alignment - 1)
        )
        if not is_power_of_two or not 8 <= alignment <= _MAX_ALIGNMENT:
            raise self._error(
                f"general.alignment={alignment!r}: must be a power of two from 8 to {_MAX_ALIGNMENT}"
            )
        data_start = _aligned(self._at, alignment)
        tensors: dict[str, GgufTensorInfo] = {}
        expected = 0  # tensors follow each other, each at the next multiple of the alignment
        for index, (name, kind, shape, offset, num_bytes) in enumerate(described):
            if name in tensors:
                raise self._error(f"it names tensor {name} twice")
            if offset != expected:
                raise self._error(f"tensor {name} begins at offset {offset}: must be {expected}")
            if num_bytes is None:  # up to the next tensor
                is_last = index + 1 == len(described)
                end = self._file_bytes - data_start if is_last else described[index + 1][3]
                num_bytes = end - offset
                expected = end
                if num_bytes < 1 or (end % alignment and not is_last):
                    raise self._error(
                        f"tensor {name} begins at offset {offset} and ends at {end}: must end after it,"
                        f" at a multiple of {alignment}"
                    )
            else:
                expected = _aligned(offset + num_bytes, alignment)
            start = data_start + offset
            if start + num_bytes > self._file_bytes:
                raise self._error(
                    f"tensor {name} ends at byte {start + num_bytes}, the file has {self._file_bytes}"
                )
            tensors[name] = GgufTensorInfo(shape, start, start + num_bytes, kind)
        return tensors

    # -- values ------------------------------------------------------------------------------------

    def _value(self, value_type: ValueType, key: str) -> Any:
        if value_type == ValueType.STRING:
            return self._string(key, MAX_HEADER_BYTES)
        value = self._number(_NUMBERS[value_type], key)
        return self._boolean(value, key) if value_type == ValueType.BOOL else value

    def _add_array(self, key: str) -> None:
        """Passes over the array `key`, which is read later."""
        value_type = self._value_type(key)
        length = self._count(f"the length of {key}", MAX_ARRAY_LENGTH)
        if value_type == ValueType.ARRAY:
            raise self._error(f"{key} is an array of arrays: not supported")
        self.value_types[key] = f"arr[{_TYPE_NAMES[value_type]},{length}]"
        start = self._at
        if value_type == ValueType.STRING:
            self._pass_strings(length, key)
            self.metadata.add_array(key, partial(self._strings, start, length, key))
        else:
            self._take(length * struct.calcsize(_NUMBERS[value_type]), key)
            self.metadata.add_array(key, partial(self._numbers, start, length, value_type, key))

    def _numbers(self, start: int, length: int, value_type: ValueType, key: str) -> Numbers:
        """The numbers that begin at byte `start`."""
        in_file = np.frombuffer(self._view, f"<{_NUMBERS[value_type]}", length, start)
        values: Numbers = in_file.copy()
        if value_type != ValueType.BOOL:
            return values
        for value in values[values > 1].tolist():
            self._boolean(value, key)  # raises
        return values.astype(bool)

    def _boolean(self, value: int, key: str) -> bool:
        if value not in (0, 1):
            raise self._error(f"{key} is a truth value of {value}: must be 0 or 1")
        return bool(value)

    def _value_type(self, key: str) -> ValueType:
        type_id = self._number("I", f"the type of {key}")
        try:
            return ValueType(type_id)
        except ValueError:
            raise self._error(
                f"{key} has a value of type {type_id}: there is no such type"
            ) from None

    def _string(self, what: str, max_bytes: int) -> str:
        try:
            return str(self._string_bytes(what, max_bytes), "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not UTF-8: {error}") from None

    def _string_bytes(self, what: str, max_bytes: int) -> memoryview:
        length = self._number("Q", what)
        if length > max_bytes:
            raise self._error(f"{what} has {length} bytes: at most {max_bytes} are allowed")
        return self._take(length, what)

    def _pass_strings(self, count: int, key: str) -> None:
        limit = min(self._file_bytes, MAX_HEADER_BYTES)
        num_passed, self._at = pass_strings(self._bytes, self._at, count, limit)
        for _ in range(num_passed, count):
            self._string_bytes(key, MAX_HEADER_BYTES)  # raises

    def _strings(self, start: int, count: int, key: str) -> Texts:
        """The strings that begin at byte `start`."""
        try:
            return Texts.read(self._bytes, start, count)
        except UnicodeDecodeError as error:
            raise self._error(f"{key} is not UTF-8: {error}") from None

    def _count(self, what: str, limit: int) -> int:
        count: int = self._number("Q", what)
        if count > limit:
            raise self._error(f"{what} is {count}: at most {limit} are allowed")
        return count

    def _number(self, number: str, what: str) -> Any:
        number = f"<{number}"
        return struct.unpack(number, self._take(struct.calcsize(number), what))[0]

    def _take(self, num_bytes: int, what: str) -> memoryview:
        end = self._at + num_bytes
        if end > self._file_bytes:
            raise HeaderEndsEarlyError(
                self._sentence(f"it ends within {what}: {self._file_bytes} bytes, {end} are needed")
            )
        if end > MAX_HEADER_BYTES:
            raise self._error(f"its header is longer than {MAX_HEADER_BYTES} bytes")
        data = self._view[self._at : end]
        self._at = end
        return data

    def _error(self, what: str) -> ValueError:
        return ValueError(self._sentence(what))

    def _sentence(self, what: str) -> str:
        return f"{self._path}: damaged GGUF file: {what}"


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
