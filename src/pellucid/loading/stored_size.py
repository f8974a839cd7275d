"""The format of a checkpoint's matrices by its config.json alone."""

from pathlib import Path

from pellucid.backends.quantization.formats import BF16, F16, F32, FloatFormat, MatrixFormat
from pellucid.facts.json_object import JsonObject
from pellucid.loading.file_names import CONFIG_FILE
from pellucid.loading.json_file import read_json_object
from pellucid.loading.quantization_settings import find_quantization
from pellucid.loading.quantized_layout import read_quantization_config

# FP8 without scales becomes bf16.
_FORMATS = {
    "bfloat16": BF16,
    "float8_e4m3fn": BF16,
    "float16": F16,
    "float32": F32,
    "float64": F32,
}
_DEFAULT_DTYPE = "float32"  # transformers leaves it out of configurations of models in f32


def stored_matrix_format(directory: Path) -> MatrixFormat | None:
    """The format in memory of the matrices, as they are stored.

    Args:
        directory: holds config.json, and perhaps what a quantizer says beside it; other files are not read.

    Returns:
        None where config.json does not say it: another quantizer chose what to quantize.

    Raises:
        ValueError: config.json is not supported.
    """
    config = read_json_object(directory / CONFIG_FILE)
    if (quantization := find_quantization(directory, config)) is not None:
        return read_quantization_config(quantization)
    return _float_format(config)


def _float_format(config: JsonObject) -> FloatFormat:
    text = config.optional_object("text_config")
    for part in (config, text):
        for key in ("dtype", "torch_dtype"):
            if part is not None and part.values.get(key) in _FORMATS:
                return _FORMATS[part.string(key)]
    return _FORMATS[_DEFAULT_DTYPE]
