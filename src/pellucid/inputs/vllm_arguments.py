"""Arguments of vLLM's `LLM(...)` without a field in `EngineConfig`: translated, or refused with advice."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from pellucid.inputs.config import EngineConfig

_RENAMED = {
    "gpu_memory_utilization": "memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "num_gpu_blocks_override": "num_kv_blocks",
}
# Values by which vLLM says "the default", and those that have another name here.
_TRANSLATED: Mapping[str, Mapping[Any, str]] = {
    "quantization": {None: "none"},
    "kv_cache_dtype": {"auto": "bf16", "bfloat16": "bf16"},
    "dtype": {"half": "float16", "float": "float32"},
}
# What vLLM's users name beside a checkpoint that is quantized already.
_FORMATS_OF_CHECKPOINTS = (
    *(
        "awq",
        "awq_marlin",
        "gptq",
        "gptq_marlin",
        "fp8",
        "compressed-tensors",
        "bitsandbytes",
        "mxfp4",
    ),
    *("gguf", "modelopt"),
)
_NONE_IS_DEFAULT = ("block_size", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")


class _Accepts(Struct, frozen=True):
    """Values that mean what pellucid does anyway; for any other, `advice`."""

    values: tuple[object, ...]
    advice: str


_ACCEPTED = {
    "trust_remote_code": _Accepts((False,), "no code of a model's repository is ever run"),
    "pipeline_parallel_size": _Accepts((1,), "one process runs the model"),
    "data_parallel_size": _Accepts((1,), "one process runs the model; start several"),
    # There are no CUDA graphs to leave out: both values mean the same.
    "enforce_eager": _Accepts((False, True), "pass True or False"),
    "enable_chunked_prefill": _Accepts(
        (None, True), "long prompts are always split; raise max_num_batched_tokens for fewer parts"
    ),
    "tokenizer_mode": _Accepts(("auto",), "tokenizer.json says what it is; leave it out"),
    "tokenizer_revision": _Accepts(
        (None,), "set revision for the model's own tokenizer; of another one name its directory"
    ),
    "load_format": _Accepts(("auto", "safetensors"), "safetensors and GGUF are read; leave it out"),
    "runner": _Accepts(("auto", "generate"), "text generation is what there is; leave it out"),
    "task": _Accepts(("auto", "generate"), "text generation is what there is; leave it out"),
    "cpu_offload_gb": _Accepts((0,), "weights are in the CPU's memory anyway; leave it out"),
    "disable_log_stats": _Accepts(
        (True, False), "statistics are in output.metrics and llm.engine.events"
    ),
    "enable_lora": _Accepts((False,), "merge the adapter into the checkpoint first"),
    "hf_token": _Accepts((None,), "set the environment variable HF_TOKEN"),
    "hf_overrides": _Accepts((None, {}), "change config.json of the checkpoint instead"),
    "download_dir": _Accepts((None,), "set the environment variable HF_HOME"),
}


def _speculation(config: Any) -> dict[str, Any]:
    """The settings that vLLM's `speculative_config` stands for."""
    if config is None:
        return {}
    given = dict(config) if isinstance(config, Mapping) else {}
    model = given.pop("model", None)
    method = given.pop("method", None if model is None else "draft_model")
    settings: dict[str, Any] = {}
    if (num_draft_tokens := given.pop("num_speculative_tokens", None)) is not None:
        settings["num_draft_tokens"] = num_draft_tokens
    if method == "ngram" and model is None and not given:
        return {"speculation": "ngram", **settings}
    if method == "draft_model" and model is not None and not given:
        return {"speculation": "draft", "draft_model": model, **settings}
    raise ValueError(
        f'speculative_config={config!r}: set speculation="ngram", "draft" or "auto", draft_model and'
        " num_draft_tokens"
    )


def engine_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `EngineConfig` that arguments of `LLM(...)` stand for.

    Args:
        arguments: fields of `EngineConfig`, or arguments of vLLM's.

    Raises:
        ValueError: an argument is unknown, or asks for what pellucid does not do.
    """
    arguments = dict(arguments)
    arguments |= _speculation(arguments.pop("speculative_config", None))
    settings: dict[str, Any] = {}
    for given, value in arguments.items():
        if (accepts := _ACCEPTED.get(given)) is not None:
            # 1 == True: types are compared as well.
            if not any(type(value) is type(one) and value == one for one in accepts.values):
                raise ValueError(f"{given}={value!r}: {accepts.advice}")
            continue
        name = _RENAMED.get(given, given)
        if name not in EngineConfig.__dataclass_fields__:
            known = ", ".join(EngineConfig.__dataclass_fields__)
            raise ValueError(f"LLM({given}=...): no such parameter; there are {known}")
        if name in settings or (name != given and name in arguments):
            raise ValueError(f"{given}={value!r}: is another name of {name}; give one of them")
        if name == "quantization" and str(value) in _FORMATS_OF_CHECKPOINTS:
            raise ValueError(
                f"quantization={value!r}: leave quantization out: the format of a quantized checkpoint is read"
                ' from its files; "int8" and "int4" quantize a checkpoint that is not'
            )
        if value is None and name in _NONE_IS_DEFAULT:
            continue
        if isinstance(value, str | None):
            value = _TRANSLATED.get(name, {}).get(value, value)
        settings[name] = value
    return settings
