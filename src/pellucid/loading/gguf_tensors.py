"""The tensors of a GGUF file as the numbers or the codes that they hold, none of them changed."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize

from pellucid.backends.quantization.formats import GROUP, INT4, INT8, IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix, pack_nibbles
from pellucid.loading.gguf_file import GgufFile, GgufTensorInfo
from pellucid.loading.tensor_source import Tensor

_FLOATS: Mapping[Type, Any] = {
    Type.F32: np.float32,
    Type.F16: np.float16,
    Type.BF16: ml_dtypes.bfloat16,
    Type.F64: np.float64,
}
_SCALE_BYTES = 2
_CHUNK_BYTES = 1 << 20
# Of IQ4_NL: what each code of 4 bits stands for (ggml-common.h, kvalues_iq4nl).
_NON_LINEAR = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


class GgufTensors:
    """The tensors of a GGUF file.

    Blocks of 32 weights with a scale and nothing else become one of our integer formats; all others
    become f32.

    Args:
        file: the file.
        num_heads: by tensor module ("blk.0.attn_q"): heads whose rows stand in the order that GGUF
            files of the Llama architecture have, pairs that rotate together side by side. They come
            back as everywhere else: the first halves of all pairs, then the second ones.
    """

    def __init__(self, file: GgufFile, num_heads: Mapping[str, int]) -> None:
        self.location = file.path
        self._file = file
        self._num_heads = num_heads

    def __contains__(self, name: object) -> bool:
        return name in self._file.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.tensors)

    def info(self, name: str) -> GgufTensorInfo:
        """Type, shape and place of the tensor `name`."""
        return self._file.tensors[name]

    def path(self, name: str) -> Path:
        """The file."""
        assert name in self
        return self.location

    def tensor(self, name: str) -> Tensor:
        """The tensor `name`.

        Raises:
            ValueError: it is stored in a type that we do not read.
        """
        tensor = self._stored(name)
        num_heads = self._num_heads.get(name.rpartition(".")[0])
        if num_heads is None:
            return tensor
        order = _halves_order(tensor.shape[0], num_heads)
        if isinstance(tensor, QuantizedMatrix):
            return tensor.rows(order)
        return np.asarray(tensor[order])

    def release(self, name: str) -> None:
        """Gives back the memory behind the tensor `name`, which may be read again."""
        self._file.release(name)

    def _stored(self, name: str) -> Tensor:
        info = self.info(name)
        rows = self._file.rows(name)
        if info.type in _FLOATS:
            numbers: npt.NDArray[Any] = rows.view(_FLOATS[info.type]).reshape(info.shape)
            return np.require(numbers, requirements="A")
        if info.type in _SCALED_BLOCKS and len(info.shape) == 2:
            return _SCALED_BLOCKS[info.type](rows)
        if info.type in _CONVERTED or info.type in _SCALED_BLOCKS:
            return _dequantize(rows, info)
        supported = [each.name for each in (*_FLOATS, *_SCALED_BLOCKS, *_CONVERTED)]
        raise ValueError(
            f"{self.location}: tensor {name} has type {info.type.name}: "
            f"supported are {', '.join(supported)}"
        )


def _halves_order(num_rows: int, num_heads: int) -> npt.NDArray[np.intp]:
    """The rows of a matrix [heads * D, ...] whose heads have interleaved pairs, halves first."""
    pairs = np.arange(num_rows).reshape(num_heads, -1, 2)  # [heads, D / 2, 2]
    return np.asarray(pairs.transpose(0, 2, 1).reshape(-1), np.intp)


def _dequantize(rows: npt.NDArray[np.uint8], info: GgufTensorInfo) -> npt.NDArray[np.float32]:
    flat = rows.reshape(-1, rows.shape[-1])
    numbers = np.empty((len(flat), info.shape[-1]), np.float32)
    step = max(1, _CHUNK_BYTES // flat.shape[1])
    for start in range(0, len(flat), step):  # the library makes many temporaries
        numbers[start : start + step] = dequantize(flat[start : start + step], info.type)
    return numbers.reshape(info.shape)


# -- blocks of a scale and 32 codes: rows [N, bytes] -----------------------------------------------


def _q8_0(rows: npt.NDArray[np.uint8]) -> QuantizedMatrix:
    scales, codes = _split_blocks(rows, _SCALE_BYTES + GROUP)
    return _matrix(INT8, codes.view(np.int8), scales)


def _q5_0(rows: npt.NDArray[np.uint8]) -> QuantizedMatrix:
    scales, blocks = _split_blocks(rows, _SCALE_BYTES + 4 + GROUP // 2)
    fifth_bits = np.unpackbits(blocks[..., :4], axis=-1, bitorder="little")
    return _matrix(INT8, (_nibbles(blocks[..., 4:]) | fifth_bits << 4).astype(np.int8) - 16, scales)


def _iq4_nl(rows: npt.NDArray[np.uint8]) -> QuantizedMatrix:
    scales, codes = _split_blocks(rows, _SCALE_BYTES + GROUP // 2)
    return _matrix(INT8, _NON_LINEAR[_nibbles(codes)], scales)


def _q4_0(rows: npt.NDArray[np.uint8]) -> QuantizedMatrix:
    scales, codes = _split_blocks(rows, _SCALE_BYTES + GROUP // 2)
    return _matrix(INT4, _nibbles(codes), scales)


_SCALED_BLOCKS: Mapping[Type, Callable[[npt.NDArray[np.uint8]], QuantizedMatrix]] = {
    Type.Q8_0: _q8_0,
    Type.Q5_0: _q5_0,
    Type.Q4_0: _q4_0,
    Type.IQ4_NL: _iq4_nl,
}
_CONVERTED: tuple[Type, ...] = (
    *(Type.Q4_1, Type.Q5_1),
    *(Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K),
    Type.IQ4_XS,
)


def _split_blocks(
    rows: npt.NDArray[np.uint8], block_bytes: int
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.uint8]]:
    """Scales [N, blocks] and the other bytes [N, blocks, ...]."""
    blocks = rows.reshape(len(rows), -1, block_bytes)
    scales = np.ascontiguousarray(blocks[..., :_SCALE_BYTES]).view(np.float16)[..., 0]
    return scales, np.ascontiguousarray(blocks[..., _SCALE_BYTES:])


def _nibbles(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[..., 16] -> [..., 32]: the first half of a block is in the low halves of its bytes."""
    return np.concatenate((codes & 15, codes >> 4), axis=-1)


def _matrix(
    weight_format: IntegerFormat, codes: npt.NDArray[Any], scales: npt.NDArray[np.float16]
) -> QuantizedMatrix:
    """From one code per element, [N, blocks, 32]."""
    codes = codes.reshape(len(codes), -1)
    packed = codes if weight_format.bits == 8 else pack_nibbles(codes)
    return QuantizedMatrix(weight_format, codes.shape[1], packed, scales)
