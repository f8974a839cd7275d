"""generation_config.json -> how the checkpoint's makers want it sampled."""

from pathlib import Path
from typing import Any

from pellucid.loading.hf_config import GENERATION_CONFIG_FILE
from pellucid.loading.json_object import read_json_object
from pellucid.sampling_params import SamplingParams

# What vLLM takes from this file, and typical_p. Limits on length stay with who asks.
_NAMES = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


def read_default_sampling_params(directory: Path) -> SamplingParams:
    """`SamplingParams()` with what generation_config.json in `directory` says instead.

    `do_sample: false` means temperature 0. A key that is missing or null changes nothing.

    Raises:
        ValueError: the file is not JSON or a value is not allowed.
    """
    path = directory / GENERATION_CONFIG_FILE
    if not path.exists():
        return SamplingParams()
    config = read_json_object(path)
    given: dict[str, Any] = {
        name: value for name in _NAMES if (value := config.values.get(name)) is not None
    }
    if not config.boolean("do_sample", True):
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
