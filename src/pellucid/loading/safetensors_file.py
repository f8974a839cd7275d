"""One safetensors file, mapped into memory: https://huggingface.co/docs/safetensors."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from pellucid.inputs.parameter_checks import MAX_SHOWN, shown
from pellucid.loading.files import MappedFile, open_regular
from pellucid.loading.mapped_tensors import PlacedTensor, TensorFile

MAX_TENSORS = 1 << 16
MAX_NAME_CHARACTERS = 1 << 10
_HEADER_LENGTH_BYTES = 8  # u64, little-endian, before the header

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
_CODE_DTYPES: Mapping[str, np.dtype[Any]] = {"I8": np.dtype(np.int8), "U8": np.dtype(np.uint8)}
_ALL_DTYPES: Mapping[str, np.dtype[Any]] = {
    **DTYPES,
    **_CODE_DTYPES,
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U32": np.dtype(np.uint32),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}


class TensorInfo(PlacedTensor, frozen=True):
    """What the header says about a tensor."""

    dtype: str

    @property
    def type_name(self) -> str:
        return self.dtype


class SafetensorsFile(TensorFile[TensorInfo]):
    """A safetensors file. Its tensors are read-only views of its pages, read when they are used.

    The file must not be truncated while it is open.

    Raises:
        ValueError: the file is missing or damaged. The header is checked against the length of the file, which
            finds truncation, holes, overlaps and wrong shapes, but not wrong values.
    """

    def __init__(self, path: Path):
        self.path = path
        self.tensors, self.metadata = _read_header(path)
        self._file = MappedFile(path)

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """The tensor `name` in its own dtype and shape.

        Raises:
            ValueError: its dtype is not a float format that we read.
        """
        return self._array(name, DTYPES)

    def codes(self, name: str) -> npt.NDArray[Any]:
        """The tensor `name` of 8-bit integers. Raises as `tensor` does."""
        return self._array(name, _CODE_DTYPES)

    def array(self, name: str) -> npt.NDArray[Any]:
        """The tensor `name` of floats, integers or FP8. Raises as `tensor` does."""
        return self._array(name, _ALL_DTYPES)

    def _array(self, name: str, dtypes: Mapping[str, np.dtype[Any]]) -> npt.NDArray[Any]:
        info = self.tensors[name]
        if info.dtype not in dtypes:
            raise ValueError(
                f"{self.path}: tensor {name} has dtype {info.dtype}: "
                f"supported are {', '.join(dtypes)}"
            )
        view = self._file.bytes[info.start : info.end].view(dtypes[info.dtype]).reshape(info.shape)
        return np.require(view, requirements="A")  # writers need not align the data


def _read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    open_regular(path).close()  # the library would wait for a FIFO
    try:
        # The library checks all of the header against the length of the file. It hands out copies
        # of tensors, though, so the data is mapped here, at the offsets that it found to be right.
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise ValueError(
            f"{path}: damaged safetensors file: {_explain(path, str(error))}"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be mapped: {error}") from None

    header, metadata, data_start = _parse_header(path)
    tensors = {
        name: TensorInfo(
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            start=data_start + entry["data_offsets"][0],
            end=data_start + entry["data_offsets"][1],
        )
        for name, entry in header.items()
    }
    return tensors, metadata


def _parse_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """The header's tensors as it describes them, its metadata, and where the data starts."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"{path}: the header names {name[:MAX_SHOWN]} twice")
        return values

    with open_regular(path) as file:
        length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
        data = file.read(length)
    if (num_tensors := data.count(b'"data_offsets"')) > MAX_TENSORS:
        raise ValueError(f"{path}: has {num_tensors} tensors: at most {MAX_TENSORS} are allowed")
    header = json.loads(data, object_pairs_hook=without_duplicates)
    metadata = header.pop("__metadata__", {})
    if (longest := max(map(len, header), default=0)) > MAX_NAME_CHARACTERS:
        raise ValueError(
            f"{path}: a tensor has a name of {longest} characters: at most {MAX_NAME_CHARACTERS} are allowed"
        )
    return header, metadata, _HEADER_LENGTH_BYTES + length


def _explain(path: Path, reason: str) -> str:
    """The library's reason, with the lengths or the tensor where it leaves them out."""
    if "file not fully covered" in reason:
        header, _, data_start = _parse_header(path)
        end = data_start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        return f"the header describes {end} bytes, the file has {path.stat().st_size}"
    if "invalid shape, data type, or offset" in reason:
        header, _, _ = _parse_header(path)
        for name, entry in header.items():
            dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if dtype in DTYPES and end - start != math.prod(shape) * DTYPES[dtype].itemsize:
                return f"tensor {name[:MAX_SHOWN]}: {dtype} {shown(shape)} does not fill bytes {start} to {end}"
    return reason.removeprefix("Error while deserializing header: ")[:MAX_SHOWN]
