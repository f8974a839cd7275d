"""A GGUF checkpoint: one file, or the parts of a split one as llama-gguf-split writes them. Its tensors are floats or
codes, unchanged."""

from collections.abc import Iterable, Mapping, MutableMapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.ops import IntArray
from pellucid.backends.quantization.blocks import BlockMatrix, BlockRows
from pellucid.backends.quantization.formats import (
    BF16,
    F16,
    F32,
    IntegerFormat,
    MatrixFormat,
    ScaleKind,
)
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.row_table import MatrixRows, RowTable
from pellucid.facts.json_object import JsonObject
from pellucid.loading.gguf_blocks import (
    BLOCK_TYPES,
    Bytes,
    format_of_blocks,
    inputs_of_row,
    matrix_from_blocks,
)
from pellucid.loading.gguf_file import GgufFile, GgufTensorInfo
from pellucid.loading.gguf_names import part_names
from pellucid.loading.gguf_types import TensorKind as Type
from pellucid.loading.gguf_types import TensorType
from pellucid.loading.mapped_tensors import TensorFiles
from pellucid.loading.tensor_source import ALL, RowIndex, select

if TYPE_CHECKING:  # native code may be missing
    from pellucid.loading.native_blocks import NativeBlocks

_COUNT, _NUMBER, _NUM_TENSORS = "split.count", "split.no", "split.tensors.count"
_FLOATS: Mapping[TensorType, Any] = {
    Type.F32: np.float32,
    Type.F16: np.float16,
    Type.BF16: ml_dtypes.bfloat16,
    Type.F64: np.float64,
}
_FLOAT_FORMATS: Mapping[TensorType, MatrixFormat] = {Type.F16: F16, Type.BF16: BF16}


def _block_type(info: GgufTensorInfo) -> Type | None:
    """The type of a tensor of blocks that we read; None: it is another one."""
    return info.type if isinstance(info.type, Type) and info.type in BLOCK_TYPES else None


class GgufCheckpoint(TensorFiles[GgufTensorInfo]):
    """The metadata of a GGUF model, and all of its tensors by name, whichever part holds them. Blocks become one of the
    integer formats.

    Args:
        path: the file, or any part of a split one.

    Attributes:
        location: the file, or the first part.
        metadata: of the file, or of the first part.
        value_types: of the metadata, as in `GgufFile`.

    Raises:
        ValueError: a file is missing or damaged, or the parts do not belong together.
    """

    _files: dict[str, GgufFile]

    def __init__(self, path: Path) -> None:
        files = [GgufFile(path.with_name(name)) for name in part_names(path.name)]
        self.location = files[0].path
        self.metadata: MutableMapping[str, Any] = files[0].metadata
        self.value_types = files[0].value_types
        for number, file in enumerate(files):
            _check_part(file, number, len(files))
        self._files = {}
        for file in files:
            for name in file.tensors:
                if name in self._files:
                    raise ValueError(
                        f"{file.path}: tensor {name} is also in {self._files[name].path}"
                    )
                self._files[name] = file
        if len(files) > 1 and self.metadata.get(_NUM_TENSORS, len(self._files)) != len(self._files):
            raise self.values.error(
                _NUM_TENSORS, f"the {len(files)} parts have {len(self._files)} tensors"
            )

    @property
    def values(self) -> JsonObject:
        """The metadata, each of whose values is checked as it is asked for."""
        return JsonObject(self.location, self.metadata)

    @cached_property
    def _formats(self) -> Mapping[Type, IntegerFormat]:
        return {block_type: format_of_blocks(block_type) for block_type in BLOCK_TYPES}

    @cached_property
    def _native(self) -> "NativeBlocks | None":
        """None: the extension is not built; NumPy is many times slower."""
        try:
            from pellucid.loading.native_blocks import NativeBlocks
        except ModuleNotFoundError:
            return None
        return NativeBlocks()

    def matrix_format(self, name: str) -> MatrixFormat:
        """The format of the matrix `name` in memory: codes of 2 and 3 bits take 4 bits."""
        info = self.info(name)
        if (block_type := _block_type(info)) is None:
            return _FLOAT_FORMATS.get(info.type, F32)
        return self._formats[block_type]

    def tensor(self, name: str, index: RowIndex = ALL) -> UniformMatrix:
        """The tensor `name`. Blocks of several matrices are one matrix: the rows of all of them.

        Args:
            index: what of it, along the first axis of its shape.

        Raises:
            ValueError: it is stored in a type that we do not read.
        """
        info = self.info(name)
        self.check_types([name])
        rows = self._files[name].rows(name)
        block_type = _block_type(info)
        if block_type is None:
            numbers: npt.NDArray[Any] = rows.view(_FLOATS[info.type]).reshape(info.shape)
            return select(np.require(numbers, requirements="A"), index)
        if len(info.shape) >= 2:
            own = select(rows, index)
            return self._matrix(own.reshape(-1, own.shape[-1]), block_type)
        return select(_dequantize(rows, block_type).reshape(info.shape), index)  # norms and biases

    def _matrix(self, blocks: Bytes, block_type: Type) -> BlockMatrix | QuantizedMatrix:
        """What rows of blocks store."""
        if (native := self._native) is None or block_type.name not in native.types:
            return matrix_from_blocks(blocks, block_type)
        own_format = self._formats[block_type]
        if own_format.scale is ScaleKind.EXPONENT:  # whose size is checked in its array
            return native.matrix(blocks, block_type.name)
        num_inputs = inputs_of_row(blocks.shape[1], block_type)
        return BlockMatrix(own_format, num_inputs, (BlockRows(block_type.name, blocks),), native)

    def reads_rows(self, name: str) -> bool:
        return True

    def check_types(self, names: Iterable[str]) -> None:
        """Raises a ValueError where one of the tensors `names` is stored in a type that we do not read."""
        read = (*_FLOATS, *BLOCK_TYPES)
        unread = [name for name in names if self.info(name).type not in read]
        if not unread:
            return
        name = unread[0]
        others = f" (and {len(unread) - 1} more tensors)" if len(unread) > 1 else ""
        supported = ", ".join(each.name for each in read)
        raise ValueError(
            f"{self.path(name)}: tensor {name}{others} has type {self.info(name).type.name}:"
            f" supported are {supported}"
        )

    def table(self, name: str) -> RowTable:
        """The rows of the matrix `name`, in its file. Raises as `tensor` does."""
        info = self.info(name)
        block_type = _block_type(info)
        if block_type is not None and len(info.shape) == 2:
            return _BlockRows(self._files[name].rows(name), info, block_type)
        return MatrixRows(self.tensor(name))


def _check_part(file: GgufFile, number: int, count: int) -> None:
    """Raises a ValueError for a file that is not part `number` of `count`."""
    metadata = JsonObject(file.path, file.metadata)
    if metadata.integer(_COUNT, 1, minimum=0) not in ({0, 1} if count == 1 else {count}):
        raise metadata.error(
            _COUNT,
            "the name of a part must end in its number and this count, as in -00001-of-00003.gguf"
            if count == 1
            else f"its name says {count}",
        )
    if count > 1 and metadata.integer(_NUMBER, minimum=0) != number:
        raise metadata.error(_NUMBER, f"its name says {number} (parts count from 0)")


class _BlockRows(Struct, frozen=True):
    """The rows of a matrix of blocks [N, bytes of a row]."""

    blocks: Bytes
    info: GgufTensorInfo
    type: Type

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, num_columns = self.info.shape
        return num_rows, num_columns

    def read(self, rows: IntArray) -> npt.NDArray[Any]:
        return matrix_from_blocks(self.blocks[rows], self.type).dequantize()


def _dequantize(row: npt.NDArray[np.uint8], block_type: Type) -> npt.NDArray[np.float32]:
    # Imported here: it takes longer than reading a header, and few files have such vectors.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(invalid="ignore"):  # a scale may be infinite: loading checks it later
        return dequantize(row, GGMLQuantizationType(block_type))
