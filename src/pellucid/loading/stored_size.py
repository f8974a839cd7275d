"""The size of a checkpoint's matrices by its config.json alone."""

from collections.abc import Callable
from pathlib import Path

from pellucid.json_object import JsonObject
from pellucid.loading.file_names import CONFIG_FILE
from pellucid.loading.json_file import read_json_object
from pellucid.loading.quantization_settings import find_quantization
from pellucid.loading.quantized_layout import read_quantization_config

# FP8 without scales becomes bf16.
_ITEM_BYTES = {"bfloat16": 2, "float8_e4m3fn": 2, "float16": 2, "float32": 4, "float64": 8}
_DEFAULT_DTYPE = "float32"  # transformers leaves it out of configurations of models in f32


def stored_matrix_bytes(directory: Path) -> Callable[[int, int], int] | None:
    """Bytes in memory of a matrix of (outputs, inputs), as it is stored.

    Args:
        directory: holds config.json, and perhaps what a quantizer says beside it; other files are not read.

    Returns:
        None where config.json does not say it: another quantizer chose what to quantize.

    Raises:
        ValueError: config.json is not supported.
    """
    config = read_json_object(directory / CONFIG_FILE)
    if (quantization := find_quantization(directory, config)) is not None:
        weight_format = read_quantization_config(quantization)
        return None if weight_format is None else weight_format.num_bytes
    item_bytes = _ITEM_BYTES[_dtype(config)]
    return lambda num_outputs, num_inputs: item_bytes * num_outputs * num_inputs


def _dtype(config: JsonObject) -> str:
    text = config.optional_object("text_config")
    for part in (config, text):
        for key in ("dtype", "torch_dtype"):
            if part is not None and part.values.get(key) in _ITEM_BYTES:
                return part.string(key)
    return _DEFAULT_DTYPE
