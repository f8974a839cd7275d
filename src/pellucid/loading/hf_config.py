"""Converts config.json and generation_config.json to a ModelConfig and default sampling parameters."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loading.file_names import CONFIG_FILE, GENERATION_CONFIG_FILE
from pellucid.loading.json_file import read_json_object
from pellucid.loading.quantization_settings import find_quantization
from pellucid.loading.quantized_layout import read_quantization_config
from pellucid.models.registry import parse_model_config

# What vLLM takes from generation_config.json, and typical_p. Limits on length are the caller's.
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


def read_model_config(directory: Path) -> ModelConfig:
    """The facts of the checkpoint in `directory`.

    Raises:
        ValueError: config.json is missing or is not JSON, its architecture is not supported, or a
            key has a value that we do not support. The message names the file, the key, the value
            and what is allowed.
    """
    config = read_json_object(directory / CONFIG_FILE)
    model = parse_model_config(config)
    if (quantization := find_quantization(directory, config)) is not None:
        read_quantization_config(quantization)
    eos_token_ids = dict.fromkeys([*model.eos_token_ids, *_generation_eos_token_ids(directory)])
    # Small models keep the ids of large ones; an id beyond the vocabulary is never sampled.
    return replace(model, eos_token_ids=tuple(i for i in eos_token_ids if i < model.vocab_size))


def read_default_sampling_params(directory: Path) -> SamplingParams:
    """The default sampling parameters of the checkpoint in `directory`, from generation_config.json.

    `do_sample: false` means temperature 0. A key that is missing or null changes nothing.

    Raises:
        ValueError: the file is not JSON or a value is not allowed.
    """
    path = directory / GENERATION_CONFIG_FILE
    if not path.exists():
        return SamplingParams()
    config = read_json_object(path)
    given: dict[str, Any] = {
        name: value for name in _SAMPLING_KEYS if (value := config.values.get(name)) is not None
    }
    if not config.boolean("do_sample", True):
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _generation_eos_token_ids(directory: Path) -> tuple[int, ...]:
    path = directory / GENERATION_CONFIG_FILE
    return read_json_object(path).token_ids("eos_token_id") if path.exists() else ()
