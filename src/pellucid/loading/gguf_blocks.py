"""Unpacks the blocks of GGUF's quantized types into codes, scales and minimums, without changing a number.

What a block means is defined by ggml's dequantize_row functions (ggml-quants.c), which the gguf
library has in NumPy; tests/model/test_gguf.py compares with it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.quantization import formats
from pellucid.backends.quantization.matrix import QuantizedMatrix, empty_matrix, pack_nibbles
from pellucid.loading.gguf_types import BLOCK_SIZES
from pellucid.loading.gguf_types import TensorKind as Type

Bytes: TypeAlias = npt.NDArray[np.uint8]
Scales: TypeAlias = npt.NDArray[np.int8]

_CHUNK_BYTES = 1 << 17  # of blocks at a time: all temporaries stay in a core's cache


def matrix_from_blocks(rows: Bytes, block_type: Type) -> QuantizedMatrix:
    """The matrix that rows of blocks store.

    Args:
        rows: [N, bytes of a row].
        block_type: one of `BLOCK_TYPES`.
    """
    _, block_bytes = BLOCK_SIZES[block_type]
    blocks = rows.reshape(len(rows), -1, block_bytes)
    read = _READERS[block_type]
    step = max(1, _CHUNK_BYTES // rows.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite: its user will see
        first = read(blocks[:step])
        if step >= len(rows):
            return first
        matrix = empty_matrix(first.format, len(rows), first.num_inputs)
        for start in range(0, len(rows), step):
            part = read(blocks[start : start + step]) if start > 0 else first
            for name, array in part.arrays.items():
                matrix.arrays[name][start : start + step] = array
    return matrix


def inputs_of_row(num_bytes: int, block_type: Type) -> int:
    """The numbers in a row of blocks."""
    block_size, block_bytes = BLOCK_SIZES[block_type]
    return num_bytes // block_bytes * block_size


def format_of_blocks(block_type: Type) -> formats.IntegerFormat:
    """The format of `matrix_from_blocks`."""
    _, block_bytes = BLOCK_SIZES[block_type]
    return matrix_from_blocks(np.zeros((1, block_bytes), np.uint8), block_type).format


# Each takes blocks [N, blocks of a row, bytes of a block].


def _q8_0(blocks: Bytes) -> QuantizedMatrix:
    scales, codes = _split(blocks, 2)
    return _matrix(formats.INT8, codes.view(np.int8), _f16(scales))


def _q4_0(blocks: Bytes) -> QuantizedMatrix:
    scales, codes = _split(blocks, 2)
    return _matrix(formats.INT4, _parts(codes, 4), _f16(scales))


def _q4_1(blocks: Bytes) -> QuantizedMatrix:
    scales, minimums, codes = _split(blocks, 2, 2)
    return _matrix(formats.INT4_MIN, _parts(codes, 4), _f16(scales), _f16(minimums))


def _q5_0(blocks: Bytes) -> QuantizedMatrix:
    scales, fifth_bits, codes = _split(blocks, 2, 4)
    return _matrix(formats.INT8, _with_fifth_bits(codes, fifth_bits) - 16, _f16(scales))


def _q5_1(blocks: Bytes) -> QuantizedMatrix:
    scales, minimums, fifth_bits, codes = _split(blocks, 2, 2, 4)
    numbers = _with_fifth_bits(codes, fifth_bits)
    return _matrix(formats.INT8_MIN, numbers, _f16(scales), _f16(minimums))


def _q2_k(blocks: Bytes) -> QuantizedMatrix:
    packed, low, scale, minimum = _split(blocks, 16, 64, 2)
    low = _parts(low.reshape(*low.shape[:-1], 2, 32), 2)  # each half gives four times 32
    scales, minimums = (packed & 15).view(np.int8), (packed >> 4).view(np.int8)
    codes = low.reshape(*low.shape[:-2], 256)
    return _matrix(formats.INT4_K16, codes, scales, minimums, _f16(scale), -_f16(minimum))


def _q3_k(blocks: Bytes) -> QuantizedMatrix:
    third_bits, low, packed, scale = _split(blocks, 32, 64, 12)
    scale_codes = _parts(packed[..., :8], 4) | _parts(packed[..., 8:], 2) << 4  # 16 of 6 bits
    low = _parts(low.reshape(*low.shape[:-1], 2, 32), 2)  # each half gives four times 32
    codes = low.reshape(*low.shape[:-2], 256) | _parts(third_bits, 1) << 2
    scales = scale_codes.astype(np.int8) - 32
    return _matrix(formats.INT4_S16, codes + np.uint8(4), scales, scale_factors=_f16(scale))


def _q4_k(blocks: Bytes) -> QuantizedMatrix:
    scale, minimum, packed, codes = _split(blocks, 2, 2, 12)
    return _matrix(
        formats.INT4_K, _k_nibbles(codes, 32), *_k_scales(packed), _f16(scale), -_f16(minimum)
    )


def _q5_k(blocks: Bytes) -> QuantizedMatrix:
    scale, minimum, packed, fifth_bits, low = _split(blocks, 2, 2, 12, 32)
    codes = _k_nibbles(low, 32) | _parts(fifth_bits, 1) << 4
    return _matrix(formats.INT5_K, codes, *_k_scales(packed), _f16(scale), -_f16(minimum))


def _q6_k(blocks: Bytes) -> QuantizedMatrix:
    low, high, scale_codes, scale = _split(blocks, 128, 64, 16)
    high = _parts(high.reshape(*high.shape[:-1], 2, 32), 2).reshape(*low.shape[:-1], 256)
    codes = (_k_nibbles(low, 64) | high << 4).astype(np.int8) - 32
    return _matrix(formats.INT6_K16, codes, scale_codes.view(np.int8), scale_factors=_f16(scale))


def _iq4_nl(blocks: Bytes) -> QuantizedMatrix:
    scales, codes = _split(blocks, 2)
    return _matrix(formats.IQ4_NL, _parts(codes, 4), _f16(scales))


def _iq4_xs(blocks: Bytes) -> QuantizedMatrix:
    scale, high, low, codes = _split(blocks, 2, 2, 4)
    pairs = np.stack((low & 15, low >> 4), axis=-1).reshape(*low.shape[:-1], 8)
    high_bits = high.view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (pairs | high_bits.astype(np.uint8) << 4).astype(np.int8) - 32
    return _matrix(formats.IQ4_XS, _k_nibbles(codes, 16), scales, scale_factors=_f16(scale))


def _mxfp4(blocks: Bytes) -> QuantizedMatrix:
    """The codebook has doubled numbers, so exponents are one less. The scales 2^-127 and 2^-126, whose
    halves are no normal floats, become 0."""
    exponents, codes = _split(blocks, 1)
    return _matrix(formats.MXFP4, _parts(codes, 4), np.maximum(exponents, 1) - np.uint8(1))


_READERS: Mapping[Type, Callable[[Bytes], QuantizedMatrix]] = {
    Type.Q8_0: _q8_0,
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q5_0: _q5_0,
    Type.Q5_1: _q5_1,
    Type.Q2_K: _q2_k,
    Type.Q3_K: _q3_k,
    Type.Q4_K: _q4_k,
    Type.Q5_K: _q5_k,
    Type.Q6_K: _q6_k,
    Type.IQ4_NL: _iq4_nl,
    Type.IQ4_XS: _iq4_xs,
    Type.MXFP4: _mxfp4,
}
BLOCK_TYPES = tuple(_READERS)


# -- parts of blocks -------------------------------------------------------------------------------


def _split(blocks: Bytes, *sizes: int) -> Sequence[Bytes]:
    """Parts of `sizes` bytes of each block, and the rest."""
    parts = np.split(blocks, np.cumsum(sizes), axis=-1)
    return [np.ascontiguousarray(part) for part in parts]


def _parts(packed: Bytes, bits: int) -> Bytes:
    """[..., n] -> [..., n * 8 / bits]: the lowest `bits` bits of all bytes, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = packed[..., None, :] >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1), np.uint8)


def _k_nibbles(packed: Bytes, run: int) -> Bytes:
    """Codes of 4 bits in runs: `run` low halves, then the high halves of the same bytes."""
    runs = packed.reshape(*packed.shape[:-1], -1, run)
    return _parts(runs, 4).reshape(*packed.shape[:-1], -1)


def _with_fifth_bits(packed: Bytes, fifth_bits: Bytes) -> npt.NDArray[np.int8]:
    bits = np.unpackbits(fifth_bits, axis=-1, bitorder="little")
    return (_parts(packed, 4) | bits << 4).astype(np.int8)


def _k_scales(packed: Bytes) -> tuple[Scales, Scales]:
    """Scales and minimums of the 8 groups of a block: 6 bits of each are in 12 bytes, in three rows
    of four: scales 0..3, minimums 0..3, and the low halves of all others, whose upper two bits are
    the upper two bits of the first rows."""
    first, second, third = np.split(packed, 3, axis=-1)
    scales = np.concatenate((first & 63, third & 15 | first >> 2 & 48), axis=-1)
    minimums = np.concatenate((second & 63, third >> 4 | second >> 2 & 48), axis=-1)
    return scales.view(np.int8), minimums.view(np.int8)


def _f16(data: Bytes) -> npt.NDArray[np.float16]:
    return data.view(np.float16)


def _matrix(
    weight_format: formats.IntegerFormat,
    codes: npt.NDArray[Any],
    scales: npt.NDArray[Any],
    minimums: npt.NDArray[Any] | None = None,
    scale_factors: npt.NDArray[np.float16] | None = None,
    minimum_factors: npt.NDArray[np.float16] | None = None,
) -> QuantizedMatrix:
    """From one code per element [N, ...], one scale per group [N, ...] and so on, in order."""
    num_outputs = len(codes)
    codes = codes.reshape(num_outputs, -1)
    others: Mapping[str, npt.NDArray[Any] | None] = {
        "minimums": minimums,
        "scale_factors": scale_factors,
        "minimum_factors": minimum_factors,
    }
    return QuantizedMatrix(
        weight_format,
        codes.shape[1],
        codes.astype(np.int8) if weight_format.bits > 4 else pack_nibbles(codes),
        scales.reshape(num_outputs, -1),
        **{
            name: array.reshape(num_outputs, -1)
            for name, array in others.items()
            if array is not None
        },
    )
