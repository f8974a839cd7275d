"""Finds what a checkpoint says about the quantization of its weights: in config.json, or in a file beside it."""

from pathlib import Path
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.loading.json_file import read_json_object

CONFIG_KEY = "quantization_config"
METHOD_KEY = "quant_method"
_MLX_KEY = "quantization"
# Names of the methods whose files name none.
MLX, MODELOPT = "mlx", "modelopt"
_MODELOPT_FILE = "hf_quant_config.json"
# Files of the first AutoGPTQ and AutoAWQ, and what they stand for where they name no method.
_METHOD_FILES = (("quantize_config.json", "gptq"), ("quant_config.json", "awq"))
SETTINGS_FILES = (_MODELOPT_FILE, *(name for name, _ in _METHOD_FILES))


def find_quantization(directory: Path, config: JsonObject) -> JsonObject | None:
    """The settings of whoever quantized the weights, with a `METHOD_KEY`; None where nobody did.

    Args:
        directory: holds config.json.
        config: what it says.

    Raises:
        ValueError: settings are no JSON object.
    """
    text = config.optional_object("text_config")
    for holder in (config, text):
        for key in (CONFIG_KEY, _MLX_KEY):
            settings = None if holder is None else holder.optional_object(key)
            if settings is not None and settings.values and not _is_of_caches(settings):
                return _with_method(settings)
    if (path := directory / _MODELOPT_FILE).exists():
        settings = read_json_object(path).optional_object("quantization")
        if settings is not None and settings.values.get("quant_algo") is not None:
            return _named(settings, MODELOPT)
    for name, method in _METHOD_FILES:
        if (path := directory / name).exists():
            settings = read_json_object(path)
            return _named(settings, settings.values.get(METHOD_KEY) or method)
    return None


def _is_of_caches(settings: JsonObject) -> bool:
    """Whether settings say how engines store keys and values, and leave the weights alone."""
    values = settings.values
    return (values.get("kv_cache_scheme") is not None and not values.get("config_groups")) or (
        values.get("kv_cache_quant_algo") is not None and values.get("quant_algo") is None
    )


def _with_method(settings: JsonObject) -> JsonObject:
    """modelopt's first files and MLX's name no method: keys of theirs do."""
    if settings.values.get(METHOD_KEY) is not None:
        return settings
    if "quant_algo" in settings.values:
        return _named(settings, MODELOPT)
    if {"bits", "group_size"} <= settings.values.keys():
        return _named(settings, MLX)
    return settings


def _named(settings: JsonObject, method: Any) -> JsonObject:
    return settings.with_values(**{METHOD_KEY: method})
