"""MLX: groups with a scale and a bias, or MXFP4; modules may have bits and groups of their own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.formats import GROUP, INT4_MIN, INT8_MIN, MXFP4, IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix, pack_nibbles
from pellucid.facts.json_object import JsonObject
from pellucid.loading.foreign.arrays import (
    FLOATS,
    Arrays,
    matrices_with,
    rounded_to_f16,
    unpacked_codes,
)
from pellucid.loading.matrix_checkpoint import FindMatrices, StoredMatrix

_AFFINE, _MXFP4 = "affine", "mxfp4"
_BITS, _GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
_EXPERTS = ".switch_mlp."  # mlx-lm's name for the matrices of all experts of a layer


@dataclass(frozen=True)
class _Packing:
    """How a module is stored: bits of a code, inputs of a group, the mode of `mlx.core.quantize`."""

    bits: int
    group_size: int
    mode: str


def read_mlx(settings: JsonObject) -> FindMatrices:
    """What finds the matrices of an MLX checkpoint.

    Args:
        settings: `quantization` of config.json: `bits`, `group_size` and `mode` of all modules, and under the
            name of a module its own.

    Raises:
        ValueError: a setting is not supported. The message names its key.
    """
    common = _read_packing(settings)
    own = {
        name: _read_packing(module)
        for name, value in settings.values.items()
        if isinstance(value, dict) and (module := settings.optional_object(name)) is not None
    }
    return matrices_with(
        ".scales", "MLX", lambda arrays: _matrix(arrays, own.get(arrays.module, common))
    )


def _read_packing(settings: JsonObject) -> _Packing:
    mode = settings.string("mode", _AFFINE)
    if mode not in (_AFFINE, _MXFP4):
        raise settings.error("mode", f"supported are {_AFFINE}, {_MXFP4}")
    bits, group_size = settings.integer("bits"), settings.integer("group_size")
    allowed = (_BITS, _GROUPS) if mode == _AFFINE else ((4,), (GROUP,))
    for key, value, values in zip(("bits", "group_size"), (bits, group_size), allowed, strict=True):
        if value not in values:
            raise settings.error(key, f"supported are {', '.join(map(str, values))}")
    return _Packing(bits, group_size, mode)


def _matrix(arrays: Arrays, packing: _Packing) -> StoredMatrix:
    """weight U32 [..., N, K * bits / 32], a stream of codes whose first has the lowest bits; scales and biases
    [..., N, K / group], or of MXFP4 scales U8 alone. "..." is nothing or the experts."""
    num_dims = 3 if _EXPERTS in arrays.module else 2
    *experts, num_outputs, num_words = arrays.shape(".weight", ("U32",), num_dims)
    num_inputs, rest = divmod(32 * num_words, packing.bits)
    if rest or num_inputs % packing.group_size:
        raise arrays.error(
            ".weight",
            f"rows of whole groups of {packing.group_size} codes of {packing.bits} bits",
        )
    of_groups = (*experts, num_outputs, num_inputs // packing.group_size)
    is_affine = packing.mode == _AFFINE
    arrays.check(".scales", FLOATS if is_affine else ("U8",), of_groups)
    if is_affine:
        arrays.check(".biases", FLOATS, of_groups)

    def read() -> UniformMatrix:
        words = arrays.array(".weight")
        codes = words.reshape(-1, words.shape[-1]).view(np.uint8)
        scales = arrays.array(".scales")
        scales = scales.reshape(-1, scales.shape[-1])
        if not is_affine:  # the codebook has doubled numbers
            exponents = np.maximum(scales, 1) - np.uint8(1)
            return QuantizedMatrix(MXFP4, num_inputs, codes, exponents)
        biases = arrays.array(".biases").reshape(scales.shape)
        return _affine(codes, scales, biases, packing, num_inputs)

    shape = (*experts, num_outputs, num_inputs)
    name = f"{arrays.module.replace(_EXPERTS, '.experts.')}.weight"
    return arrays.matrix((".weight", ".scales", ".biases"), shape, _format(packing), read, name)


def _format(packing: _Packing) -> IntegerFormat:
    if packing.mode == _MXFP4:
        return MXFP4
    return INT4_MIN if packing.bits <= 4 else INT8_MIN


def _affine(
    stream: npt.NDArray[np.uint8],
    scales: npt.NDArray[Any],
    biases: npt.NDArray[Any],
    packing: _Packing,
    num_inputs: int,
) -> QuantizedMatrix:
    """scale * code + bias. The codes are unchanged; scales and biases become f16, which holds bf16 from 2^-17 to
    65,280 without a change and rounds smaller ones by at most 2^-25. Signed codes of 8 bits are 128 less, so that
    the minimum is bias + 128 * scale: where a group has numbers of both signs, and MLX stored bf16, f16 holds
    the sum without a change, too; else it is rounded by at most 2^-11 of itself."""
    repeats = packing.group_size // GROUP
    minimums = biases.astype(np.float32)
    if packing.bits == 8:
        codes: npt.NDArray[Any] = (stream ^ np.uint8(0x80)).view(np.int8)
        minimums = minimums + 128 * scales.astype(np.float32)
    elif packing.bits > 4:
        codes = unpacked_codes(stream, packing.bits).view(np.int8)
    else:
        codes = stream if packing.bits == 4 else pack_nibbles(unpacked_codes(stream, packing.bits))
    of_groups = (
        np.ascontiguousarray(np.repeat(rounded_to_f16(each), repeats, axis=1))
        for each in (scales, minimums)
    )
    own_scales, own_minimums = of_groups
    return QuantizedMatrix(_format(packing), num_inputs, codes, own_scales, minimums=own_minimums)
