"""Codes of 4 bits that stand for the numbers of a codebook: gpt-oss's MXFP4 and bitsandbytes' NF4."""

import json

import numpy as np

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.formats import GROUP, MEDIUM_GROUP, MXFP4, NF4, NORMAL_FLOAT
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.facts.json_object import JsonObject
from pellucid.inputs.parameter_checks import shown
from pellucid.loading.foreign.arrays import (
    Arrays,
    outputs_and_inputs,
    rounded_to_f16,
)
from pellucid.loading.matrix_checkpoint import StoredMatrix


def mxfp4_matrix(arrays: Arrays) -> StoredMatrix:
    """gpt-oss: _blocks U8 [experts, N, K / 32, 16], the even input in the low half of a byte, and _scales U8
    [experts, N, K / 32]."""
    num_experts, num_outputs, num_groups, _ = arrays.shape("_blocks", ("U8",), 4)
    num_inputs, groups = num_groups * GROUP, (num_experts, num_outputs, num_groups)
    arrays.check("_blocks", ("U8",), (*groups, GROUP // 2))
    arrays.check("_scales", ("U8",), groups)

    def read() -> UniformMatrix:
        codes = arrays.array("_blocks").reshape(-1, num_inputs // 2)
        # The codebook has doubled numbers.
        scales = np.maximum(arrays.array("_scales"), 1).reshape(-1, num_groups) - np.uint8(1)
        return QuantizedMatrix(MXFP4, num_inputs, codes, scales)

    shape = (num_experts, num_outputs, num_inputs)
    return arrays.matrix(("_blocks", "_scales"), shape, MXFP4, read, arrays.module)


QUANT_STATE = ".weight.quant_state.bitsandbytes__nf4"
_LARGEST_STATE = 1 << 16  # bytes
_NESTED_BLOCK = 256
_NESTED = ("nested_absmax", "nested_quant_map")


def nf4_matrix(arrays: Arrays) -> StoredMatrix:
    """weight U8 [N * K / 2, 1], the even input in the high half of a byte; absmax of 64 inputs each, F32 or U8
    codes of a codebook with F32 scales of 256 each and an offset; JSON of the shape. Our codebook has the
    numbers in 8 bits, which moves them by at most 0.4 % of absmax; scales are rounded to f16."""
    state = _quant_state(arrays)
    num_outputs, num_inputs = shape = outputs_and_inputs(state, "shape")
    num_codes = num_outputs * num_inputs
    if state.integer("blocksize") != MEDIUM_GROUP or num_inputs % MEDIUM_GROUP:
        raise state.error(
            "blocksize", f"supported are rows of whole blocks of {MEDIUM_GROUP} inputs"
        )
    num_groups = num_codes // MEDIUM_GROUP
    arrays.check(".weight", ("U8",), (num_codes // 2, 1))
    is_nested = arrays.has(".weight.nested_absmax")
    arrays.check(".weight.absmax", ("U8" if is_nested else "F32",), (num_groups,))
    arrays.check(".weight.quant_map", ("F32",), (len(NORMAL_FLOAT),))
    offset = 0.0
    if is_nested:
        arrays.check(".weight.nested_absmax", ("F32",), (-(-num_groups // _NESTED_BLOCK),))
        arrays.check(".weight.nested_quant_map", ("F32",), (256,))
        state.integer("nested_blocksize", minimum=_NESTED_BLOCK, maximum=_NESTED_BLOCK)
        offset = state.number("nested_offset")

    def read() -> UniformMatrix:
        if not np.array_equal(np.rint(127 * arrays.array(".weight.quant_map")), NORMAL_FLOAT):
            raise ValueError(
                f"{arrays.path('.weight.quant_map')}: tensor"
                f" {arrays.module}.weight.quant_map holds other numbers than NF4's"
            )
        absmax = arrays.array(".weight.absmax")
        if is_nested:
            of_blocks = np.repeat(arrays.array(".weight.nested_absmax"), _NESTED_BLOCK)
            numbers = arrays.array(".weight.nested_quant_map")[absmax]
            absmax = numbers * of_blocks[: len(absmax)] + np.float32(offset)
        bytes_of_rows = arrays.array(".weight").reshape(-1, num_inputs // 2)
        codes = bytes_of_rows >> np.uint8(4) | bytes_of_rows << np.uint8(4)
        scales = rounded_to_f16(absmax / np.float32(127)).reshape(len(codes), -1)
        return QuantizedMatrix(NF4, num_inputs, codes, scales)

    parts = (f".weight.{part}" for part in ("absmax", "quant_map", *_NESTED))
    return arrays.matrix((".weight", *parts, QUANT_STATE), shape, NF4, read)


def _quant_state(arrays: Arrays) -> JsonObject:
    """The JSON beside a matrix."""
    arrays.shape(QUANT_STATE, ("U8",), 1)
    data = arrays.array(QUANT_STATE)[:_LARGEST_STATE].tobytes()
    path, name = arrays.path(QUANT_STATE), arrays.module + QUANT_STATE
    try:
        values = json.loads(data)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: tensor {name} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: tensor {name} is {shown(values)}: must be an object")
    return JsonObject(path, values, name)
