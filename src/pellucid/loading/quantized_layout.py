"""The file layout of `pellucid quantize`, which docs/quantization.md defines: reading it.

The tensors are those of pellucid's decoders, not the family's: joined, not transposed, under the decoders' names,
so that they can be mapped from disk as they are. config.json and the metadata of each safetensors file say so.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.quantization.formats import FORMATS, IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.facts.json_object import MAX_INTEGER, JsonObject
from pellucid.inputs.parameter_checks import shown
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.matrix_checkpoint import Matrices, StoredMatrix
from pellucid.loading.quantization_settings import METHOD_KEY
from pellucid.loading.safetensors_file import SafetensorsFile

LARGEST_ZERO_POINT = 15

QUANT_METHOD = "pellucid"
_METHODS = {"hqq": "HQQ", "aqlm": "AQLM"}  # quant_method in config.json -> what people call it
VERSION = 1

DTYPE_NAMES: Mapping[np.dtype[Any], str] = {
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
}
# Keys of a safetensors file's metadata, whose values are strings.
FORMAT_KEY, VERSION_KEY, SHAPES_KEY = "pellucid_format", "pellucid_version", "pellucid_shapes"


def quantization_config(weight_format: IntegerFormat) -> dict[str, Any]:
    """The value of `CONFIG_KEY` in config.json."""
    return {"quant_method": QUANT_METHOD, "format": weight_format.name, "version": VERSION}


def file_metadata(
    weight_format: IntegerFormat, shapes: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    """The metadata of a safetensors file that holds matrices of these shapes [N, K]."""
    return {
        FORMAT_KEY: weight_format.name,
        VERSION_KEY: str(VERSION),
        SHAPES_KEY: json.dumps(shapes),
    }


def read_quantization_config(quantization: JsonObject) -> IntegerFormat | None:
    """The format that the settings of a quantizer give the matrices; None if another quantizer wrote them whose
    matrices `loading/foreign` reads.

    Raises:
        ValueError: nothing here reads them.
    """
    if (method := quantization.values.get(METHOD_KEY)) != QUANT_METHOD:
        # Imported here: few checkpoints need it.
        from pellucid.loading.foreign.quantization_config import read_foreign_config

        if read_foreign_config(quantization) is not None:
            return None
        raise ValueError(
            f"{quantization.path}: {quantization.name or METHOD_KEY}: the weights are quantized by"
            f" {_method_name(method)}, which does not load: use the unquantized repository with quantization="
            f"{_similar_format(quantization)!r}, or a GGUF file"
        )
    quantization.integer("version", minimum=VERSION, maximum=VERSION)
    if (name := quantization.string("format")) not in FORMATS:
        raise quantization.error("format", f"supported are {', '.join(FORMATS)}")
    return FORMATS[name]


def _method_name(method: Any) -> str:
    return _METHODS.get(method, shown(method)) if isinstance(method, str) else "an unnamed method"


def _similar_format(quantization: JsonObject) -> str:
    """The format of `EngineConfig.quantization` with about as many bits."""
    values = quantization.values
    bits = values.get("bits", values.get("w_bit"))
    has_8_bits = "8" in str(values.get("quant_method")) or values.get("load_in_8bit") is True
    return "int8" if bits == 8 or has_8_bits else "int4"


def own_matrices(checkpoint: Checkpoint, weight_format: IntegerFormat) -> Matrices:
    """The matrices of a directory that `pellucid quantize` wrote in `weight_format`, in views of its files.

    Raises:
        ValueError: the metadata of a file contradicts `weight_format`, or does not fit the arrays in it.
    """
    matrices = {}
    for file in checkpoint.files:
        for name, shape in _read_shapes(file, weight_format).items():
            num_bytes = _checked_bytes(file, name, shape, weight_format)
            arrays = tuple(f"{name}.{part}" for part in weight_format.arrays(*shape))
            read = partial(_read_matrix, checkpoint, name, shape[1], weight_format)
            matrices[name] = StoredMatrix(name, arrays, shape, weight_format, num_bytes, read)
    return matrices


def _read_matrix(
    checkpoint: Checkpoint, name: str, num_inputs: int, weight_format: IntegerFormat
) -> QuantizedMatrix:
    zero_points: npt.NDArray[Any] | None = None
    if weight_format.has_zero_points:
        zero_points = checkpoint.codes(f"{name}.zero_points")
        if zero_points.max() > LARGEST_ZERO_POINT:
            raise ValueError(
                f"{checkpoint.path(f'{name}.codes')}: tensor {name}.zero_points holds {zero_points.max()}: "
                f"allowed are 0 to {LARGEST_ZERO_POINT}"
            )
    codes, scales = checkpoint.codes(f"{name}.codes"), checkpoint.tensor(f"{name}.scales")
    return QuantizedMatrix(weight_format, num_inputs, codes, scales, zero_points)


def _read_shapes(file: SafetensorsFile, weight_format: IntegerFormat) -> dict[str, tuple[int, int]]:
    """[N, K] of each matrix in `file`, from its metadata."""
    expected = {FORMAT_KEY: weight_format.name, VERSION_KEY: str(VERSION)}
    for key, value in expected.items():
        if (actual := file.metadata.get(key)) != value:
            raise ValueError(f"{file.path}: metadata {key}={actual!r}: config.json says {value!r}")
    try:
        shapes = json.loads(file.metadata.get(SHAPES_KEY, ""))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{file.path}: metadata {SHAPES_KEY}: not JSON: {error}") from None
    valid = isinstance(shapes, dict) and all(map(_is_shape, shapes.values()))
    if not valid:
        raise ValueError(
            f"{file.path}: metadata {SHAPES_KEY}: must give two numbers from 1 to {MAX_INTEGER} "
            "for each matrix"
        )
    return {name: (shape[0], shape[1]) for name, shape in shapes.items()}


def _is_shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(size) is int and 0 < size <= MAX_INTEGER for size in value)
    )


def _checked_bytes(
    file: SafetensorsFile, name: str, shape: tuple[int, int], weight_format: IntegerFormat
) -> int:
    """Bytes of the arrays of the matrix `name`, whose dtypes and shapes fit `shape`."""
    num_bytes = 0
    for part, (dtype, part_shape) in weight_format.arrays(*shape).items():
        array = f"{name}.{part}"
        if (info := file.tensors.get(array)) is None:
            raise ValueError(f"{file.path}: tensor {array} is missing from the file")
        if (info.dtype, info.shape) != (DTYPE_NAMES[dtype], part_shape):
            raise ValueError(
                f"{file.path}: tensor {array} is {info.dtype} {list(info.shape)}: a matrix "
                f"{list(shape)} in {weight_format.name} has {DTYPE_NAMES[dtype]} {list(part_shape)}"
            )
        num_bytes += info.num_bytes
    return num_bytes
