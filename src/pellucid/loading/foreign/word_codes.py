"""AWQ (AutoAWQ, version gemm), GPTQ (AutoGPTQ, GPTQModel) and compressed-tensors (llm-compressor): integer codes,
of which words of 32 bits hold several."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.formats import (
    GROUP,
    INT4,
    INT4_G64,
    INT4_G64_ZP,
    INT4_G128,
    INT4_G128_ZP,
    INT4_ZP,
    INT8,
    INT8_CHANNEL,
    LARGE_GROUP,
)
from pellucid.backends.quantization.matrix import QuantizedMatrix, pack_nibbles
from pellucid.loading.foreign.arrays import (
    FLOATS,
    Arrays,
    rounded_to_f16,
    unpacked_codes,
)
from pellucid.loading.matrix_checkpoint import StoredMatrix

Codes: TypeAlias = npt.NDArray[np.uint8]

# The formats of 4 bits, by inputs per group. A group of a multiple of 128 inputs becomes several groups.
SYMMETRIC = {each.group_size: each for each in (INT4, INT4_G64, INT4_G128)}
ASYMMETRIC = {each.group_size: each for each in (INT4_ZP, INT4_G64_ZP, INT4_G128_ZP)}

_WORD_BITS = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight columns each 4 bits of a word hold


def awq_matrix(arrays: Arrays, group_size: int | None) -> StoredMatrix:
    """qweight I32 [K, N / 8], qzeros I32 [K / group, N / 8], scales F16 [K / group, N]; (code - zero) * scale."""
    num_inputs, num_words = arrays.shape(".qweight", ("I32",), 2)
    num_outputs = 8 * num_words
    groups = _num_groups(arrays, ".qweight", num_inputs, group_size)
    arrays.check(".qzeros", ("I32",), (groups, num_words))
    arrays.check(".scales", FLOATS, (groups, num_outputs))

    def read() -> UniformMatrix:
        codes = _unpack_words(arrays.array(".qweight"), 4, _AWQ_ORDER).T
        zeros = _unpack_words(arrays.array(".qzeros"), 4, _AWQ_ORDER).T
        return _grouped_int4(pack_nibbles(codes), arrays.array(".scales").T, zeros, num_inputs)

    suffixes = (".qweight", ".qzeros", ".scales")
    weight_format = ASYMMETRIC[min(group_size or num_inputs, LARGE_GROUP)]
    return arrays.matrix(suffixes, (num_outputs, num_inputs), weight_format, read)


def gptq_matrix(arrays: Arrays, bits: int, group_size: int | None, offset: int) -> StoredMatrix:
    """qweight I32 [K * bits / 32, N], qzeros I32 [K / group, N * bits / 32], scales F16 [K / group, N], g_idx
    I32 [K]; (code - (zero + offset)) * scale. With 8 bits all zero points must be 128; fewer become 4."""
    num_words, num_outputs = arrays.shape(".qweight", ("I32",), 2)
    num_inputs = num_words * _WORD_BITS // bits
    groups = _num_groups(arrays, ".qweight", num_inputs, group_size)
    arrays.check(".qzeros", ("I32",), (groups, -(-num_outputs * bits // _WORD_BITS)))
    arrays.check(".scales", FLOATS, (groups, num_outputs))
    if arrays.has(".g_idx"):
        arrays.check(".g_idx", ("I32",), (num_inputs,))

    def read() -> UniformMatrix:
        # Words hold neighbouring inputs.
        codes = np.ascontiguousarray(_unpack_words(arrays.array(".qweight").T, bits))
        _check_group_order(arrays, ".g_idx", num_inputs, groups)
        zeros = _unpack_words(arrays.array(".qzeros"), bits)[:, :num_outputs] + np.uint8(offset)
        zeros &= np.uint8((1 << bits) - 1)  # zero points of 0 are stored as the largest code
        scales = arrays.array(".scales").T
        if bits == 8:
            _check_centered(arrays, ".qzeros", zeros)
            return _int8(codes ^ np.uint8(0x80), scales)
        return _grouped_int4(pack_nibbles(codes), scales, zeros.T, num_inputs)

    suffixes = (".qweight", ".qzeros", ".scales", ".g_idx")
    weight_format = INT8 if bits == 8 else ASYMMETRIC[min(group_size or num_inputs, LARGE_GROUP)]
    return arrays.matrix(suffixes, (num_outputs, num_inputs), weight_format, read)


def packed_matrix(
    arrays: Arrays, bits: int, group_size: int | None, is_symmetric: bool
) -> StoredMatrix:
    """weight_packed I32 [N, K * bits / 32], weight_scale [N, K / group], weight_zero_point I32 [N * bits / 32,
    K / group] unless it is symmetric, weight_shape I64 [2]; codes and zero points are stored + 2^(bits - 1)."""
    per_word = _WORD_BITS // bits
    rows, num_words = arrays.shape(".weight_packed", ("I32",), 2)
    arrays.check(".weight_shape", ("I64", "I32"), (2,))
    num_outputs, num_inputs = shape = tuple(map(int, arrays.array(".weight_shape")))
    if shape != (rows, num_words * per_word):
        raise ValueError(
            f"{arrays.path('.weight_shape')}: tensor {arrays.module}.weight_shape is"
            f" {list(shape)}: weight_packed has {rows} rows of {num_words} words"
        )
    groups = _num_groups(arrays, ".weight_packed", num_inputs, group_size)
    arrays.check(".weight_scale", FLOATS, (num_outputs, groups))
    if not is_symmetric:
        arrays.check(".weight_zero_point", ("I32",), (-(-num_outputs // per_word), groups))
    if arrays.has(".weight_g_idx"):
        arrays.check(".weight_g_idx", ("I32", "I64"), (num_inputs,))

    def read() -> UniformMatrix:
        _check_group_order(arrays, ".weight_g_idx", num_inputs, groups)
        codes = arrays.array(".weight_packed").view(np.uint8)
        scales = arrays.array(".weight_scale")
        if bits == 8:
            return _int8(codes ^ np.uint8(0x80), scales)
        zeros = None
        if not is_symmetric:
            zeros = _unpack_words(arrays.array(".weight_zero_point").T, 4).T[:num_outputs]
        return _grouped_int4(codes, scales, zeros, num_inputs)

    parts = ("packed", "scale", "zero_point", "shape", "g_idx")
    formats = SYMMETRIC if is_symmetric else ASYMMETRIC
    weight_format = INT8 if bits == 8 else formats[min(group_size or num_inputs, LARGE_GROUP)]
    return arrays.matrix(tuple(f".weight_{part}" for part in parts), shape, weight_format, read)


def int8_matrix(arrays: Arrays) -> StoredMatrix:
    """weight I8 [N, K], weight_scale [N, 1] or [N]; code * scale."""
    num_outputs, num_inputs = shape = arrays.shape(".weight", ("I8",), 2)
    arrays.check(".weight_scale", FLOATS, (num_outputs, 1), (num_outputs,))

    def read() -> UniformMatrix:
        scales = arrays.array(".weight_scale").astype(np.float32).reshape(-1)
        return QuantizedMatrix(INT8_CHANNEL, num_inputs, arrays.array(".weight"), scales)

    suffixes = (".weight", ".weight_scale", ".input_scale")
    return arrays.matrix(suffixes, shape, INT8_CHANNEL, read)


def llm_int8_matrix(arrays: Arrays) -> StoredMatrix:
    """bitsandbytes' LLM.int8: weight I8 [N, K], SCB F32 [N], the largest magnitude of each row; code * SCB / 127."""
    num_outputs, num_inputs = shape = arrays.shape(".weight", ("I8",), 2)
    arrays.check(".SCB", ("F32",), (num_outputs,))

    def read() -> UniformMatrix:
        scales = arrays.array(".SCB") / np.float32(127)
        return QuantizedMatrix(INT8_CHANNEL, num_inputs, arrays.array(".weight"), scales)

    return arrays.matrix((".weight", ".SCB", ".weight_format"), shape, INT8_CHANNEL, read)


def _num_groups(arrays: Arrays, suffix: str, num_inputs: int, group_size: int | None) -> int:
    """Groups of a row. Raises a ValueError where they do not divide it."""
    size = num_inputs if group_size is None else group_size
    if num_inputs % size or (size not in SYMMETRIC and size % LARGE_GROUP):
        raise arrays.error(
            suffix,
            f"rows of whole groups of {', '.join(map(str, SYMMETRIC))} inputs or a multiple of"
            f" {LARGE_GROUP}; this matrix has groups of {size} in {num_inputs} inputs",
        )
    return num_inputs // size


def _check_group_order(arrays: Arrays, suffix: str, num_inputs: int, groups: int) -> None:
    """Raises a ValueError where groups are not runs of neighbouring inputs."""
    if not arrays.has(suffix):
        return
    if not np.array_equal(arrays.array(suffix), np.arange(num_inputs) // (num_inputs // groups)):
        raise ValueError(
            f"{arrays.path(suffix)}: tensor {arrays.module}{suffix} gives the inputs"
            f" of a group another order (act-order): {arrays.method} is read with neighbouring inputs in a"
            " group (desc_act=false); use a checkpoint that was quantized so, or a GGUF file"
        )


def _unpack_words(
    words: npt.NDArray[Any], bits: int, order: tuple[int, ...] | None = None
) -> Codes:
    """[R, W] words -> [R, W * 32 / bits] codes: the lowest bits of a word are code `order[0]` of its own."""
    if _WORD_BITS % bits:  # a code may begin in one word and end in the next one
        return unpacked_codes(np.ascontiguousarray(words).view(np.uint8), bits)
    per_word = _WORD_BITS // bits
    unsigned = words.view(np.uint32)
    codes = np.empty((words.shape[0], words.shape[1] * per_word), np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for index, column in enumerate(order or range(per_word)):
        codes[:, column::per_word] = unsigned >> np.uint32(bits * index) & mask
    return codes


def _grouped_int4(
    codes: Codes, scales: npt.NDArray[Any], zeros: Codes | None, num_inputs: int
) -> QuantizedMatrix:
    """From two codes to a byte [N, ceil(K / 2)], scales [N, groups] and zero points [N, groups]. Groups of more
    inputs than our formats have become several. Scales are rounded to f16: those of bf16 change where they
    are below 2^-14, by at most 2^-25."""
    group_size = num_inputs // scales.shape[1]
    formats = SYMMETRIC if zeros is None else ASYMMETRIC
    size = min(group_size, LARGE_GROUP)
    return QuantizedMatrix(
        formats[size],
        num_inputs,
        np.ascontiguousarray(codes),
        _repeated(rounded_to_f16(scales), group_size // size),
        None if zeros is None else _repeated(zeros, group_size // size),
    )


def _check_centered(arrays: Arrays, suffix: str, zeros: Codes) -> None:
    """Raises a ValueError where a zero point of codes of 8 bits is not 128."""
    if (zeros != 128).any():
        raise ValueError(
            f"{arrays.path(suffix)}: tensor {arrays.module}{suffix} has a zero point"
            f" of {int(zeros[zeros != 128][0])}: {arrays.method} with 8 bits is read where all are 128 (sym=true)"
        )


def _int8(codes: Codes, scales: npt.NDArray[Any]) -> QuantizedMatrix:
    """From s8 codes [N, K] and scales [N, groups] of at least 32 inputs."""
    num_inputs = codes.shape[1]
    repeats = num_inputs // scales.shape[1] // GROUP
    signed = np.ascontiguousarray(codes).view(np.int8)
    return QuantizedMatrix(INT8, num_inputs, signed, _repeated(rounded_to_f16(scales), repeats))


def _repeated(per_group: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.repeat(per_group, count, axis=1))
