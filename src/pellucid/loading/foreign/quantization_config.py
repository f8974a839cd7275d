"""Reads the settings of other quantizers: which arrays of their checkpoints are a matrix."""

from collections.abc import Callable, Mapping
from typing import Any

from pellucid.backends.quantization.formats import LARGE_GROUP
from pellucid.facts.json_object import JsonObject
from pellucid.loading.foreign.arrays import matrices_with, outputs_and_inputs
from pellucid.loading.foreign.codebooks import QUANT_STATE, mxfp4_matrix, nf4_matrix
from pellucid.loading.foreign.fp8 import fp8_matrices
from pellucid.loading.foreign.mlx import read_mlx
from pellucid.loading.foreign.nvfp4 import nvfp4_matrix
from pellucid.loading.foreign.word_codes import (
    SYMMETRIC,
    awq_matrix,
    gptq_matrix,
    int8_matrix,
    llm_int8_matrix,
    packed_matrix,
)
from pellucid.loading.matrix_checkpoint import FindMatrices
from pellucid.loading.quantization_settings import METHOD_KEY, MLX, MODELOPT


def read_foreign_config(settings: JsonObject) -> FindMatrices | None:
    """What finds the matrices of a checkpoint by the settings of its quantizer; None for an unknown quantizer.

    Raises:
        ValueError: a setting is not supported. The message names its key.
    """
    read = _METHODS.get(str(settings.values.get(METHOD_KEY)))
    return None if read is None else read(settings)


def _read_awq(config: JsonObject) -> FindMatrices:
    _allow(config, "bits" if "bits" in config.values else "w_bit", (4,))
    if "version" in config.values:
        _allow(config, "version", ("gemm", "GEMM"))
    group_key = "group_size" if "group_size" in config.values else "q_group_size"
    group_size = _group_size(config, group_key)
    if not config.boolean("zero_point", True):
        raise config.error("zero_point", "supported is true")
    return matrices_with(".qweight", "AWQ", lambda arrays: awq_matrix(arrays, group_size))


def _read_gptq(config: JsonObject) -> FindMatrices:
    _allow(config, "bits", (2, 3, 4, 8))
    group_size = _group_size(config, "group_size")
    checkpoint_format = "gptq"
    if config.values.get("checkpoint_format") is not None:
        _allow(config, "checkpoint_format", ("gptq", "gptq_v2"))
        checkpoint_format = config.string("checkpoint_format")
    bits, offset = config.integer("bits"), int(checkpoint_format == "gptq")
    return matrices_with(
        ".qweight", "GPTQ", lambda arrays: gptq_matrix(arrays, bits, group_size, offset)
    )


def _read_fp8(config: JsonObject) -> FindMatrices:
    if config.values.get("fmt") is not None:
        _allow(config, "fmt", ("e4m3", "float8_e4m3fn"))
    block: tuple[int, int] | None = None
    if config.values.get("weight_block_size") is not None:
        block = outputs_and_inputs(config, "weight_block_size")
    return lambda checkpoint: fp8_matrices(checkpoint, "FP8", block)


def _read_modelopt(config: JsonObject) -> FindMatrices:
    """NVIDIA's TensorRT Model Optimizer."""
    key = "quant_algo"
    _allow(config, key, ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4"))
    if config.string(key) == "NVFP4":
        return matrices_with(".weight_scale_2", "NVFP4", nvfp4_matrix)
    return lambda checkpoint: fp8_matrices(checkpoint, "modelopt's FP8", None)


def _read_bitsandbytes(config: JsonObject) -> FindMatrices:
    if config.boolean("load_in_8bit", False):
        return matrices_with(".SCB", "bitsandbytes' int8", llm_int8_matrix)
    _allow(config, "load_in_4bit", (True,))
    _allow(config, "bnb_4bit_quant_type", ("nf4",))
    return matrices_with(QUANT_STATE, "bitsandbytes NF4", nf4_matrix)


def _read_compressed_tensors(config: JsonObject) -> FindMatrices:
    groups = config.optional_object("config_groups")
    schemes = [] if groups is None else [groups.optional_object(key) for key in groups.values]
    weights = [None if scheme is None else scheme.optional_object("weights") for scheme in schemes]
    if len(weights) != 1 or weights[0] is None:
        raise config.error("config_groups", "supported is one group, which quantizes weights")
    _allow(config, "format", tuple(_COMPRESSED))
    return _COMPRESSED[config.string("format")](weights[0])


def _read_packed_codes(weights: JsonObject) -> FindMatrices:
    _allow(weights, "num_bits", (4, 8))
    _allow(weights, "type", ("int",))
    bits, is_symmetric = weights.integer("num_bits"), weights.boolean("symmetric", True)
    if bits == 8 and not is_symmetric:
        raise weights.error("symmetric", "codes of 8 bits are read without zero points")
    group_size = _group_size(weights, "group_size") if weights.values.get("group_size") else None
    return matrices_with(
        ".weight_packed",
        "compressed-tensors",
        lambda arrays: packed_matrix(arrays, bits, group_size, is_symmetric),
    )


def _read_int8_codes(weights: JsonObject) -> FindMatrices:
    _allow(weights, "num_bits", (8,))
    _allow(weights, "type", ("int",))
    _allow(weights, "symmetric", (True,))
    _allow(weights, "strategy", ("channel",))
    return matrices_with(".weight_scale", "compressed-tensors", int8_matrix)


def _read_float_codes(weights: JsonObject) -> FindMatrices:
    _allow(weights, "num_bits", (8,))
    _allow(weights, "type", ("float",))
    _allow(weights, "strategy", ("tensor", "channel", "block"))
    is_block = weights.string("strategy") == "block"
    block = outputs_and_inputs(weights, "block_structure") if is_block else None
    return lambda checkpoint: fp8_matrices(checkpoint, "compressed-tensors", block)


def _read_naive_codes(weights: JsonObject) -> FindMatrices:
    is_float = weights.values.get("type") == "float"
    return _read_float_codes(weights) if is_float else _read_int8_codes(weights)


_COMPRESSED: Mapping[str, Callable[[JsonObject], FindMatrices]] = {
    "pack-quantized": _read_packed_codes,
    "int-quantized": _read_int8_codes,
    "float-quantized": _read_float_codes,
    "naive-quantized": _read_naive_codes,
}
_METHODS: Mapping[str, Callable[[JsonObject], FindMatrices]] = {
    "awq": _read_awq,
    "gptq": _read_gptq,
    "fp8": _read_fp8,
    "fbgemm_fp8": _read_fp8,
    "mxfp4": lambda config: matrices_with("_blocks", "MXFP4", mxfp4_matrix),
    MLX: read_mlx,
    MODELOPT: _read_modelopt,
    "bitsandbytes": _read_bitsandbytes,
    "compressed-tensors": _read_compressed_tensors,
}


def _allow(config: JsonObject, key: str, allowed: tuple[Any, ...]) -> None:
    value = config.values.get(key)
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise config.error(key, f"supported are {', '.join(map(str, allowed))}")


def _group_size(config: JsonObject, key: str) -> int | None:
    """Inputs that share a scale; None: all of a row."""
    value = config.values.get(key)
    if value == -1:
        return None
    if type(value) is not int or not (value in SYMMETRIC or value > 0 == value % LARGE_GROUP):
        raise config.error(
            key, f"supported are {', '.join(map(str, SYMMETRIC))}, multiples of {LARGE_GROUP}, -1"
        )
    return value
