"""Converts the metadata of a GGUF file to a ModelConfig, by way of the keys of config.json."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pellucid.config import ModelConfig
from pellucid.loading.gguf_checkpoint import GgufCheckpoint
from pellucid.loading.hf_config import parse_model_config
from pellucid.loading.json_object import JsonObject
from pellucid.loading.tensor_source import as_floats
from pellucid.sampling_params import SamplingParams

# What llama.cpp derives from the number of layers, for it is not in the file.
_GEMMA2_27B_LAYERS = 46

_BLOCK_COUNT, _CONTEXT, _WINDOW = "block_count", "context_length", "attention.sliding_window"
_EMBEDDING, _FEED_FORWARD = "embedding_length", "feed_forward_length"
_HEADS, _KV_HEADS = "attention.head_count", "attention.head_count_kv"
_KEY_LENGTH, _VALUE_LENGTH = "attention.key_length", "attention.value_length"
_RMS_EPSILON, _EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_ROPE_DIM, _ROPE_BASE = "rope.dimension_count", "rope.freq_base"
_SCALING, _SCALING_FACTOR = "rope.scaling.type", "rope.scaling.factor"
_ORIGINAL_CONTEXT = "rope.scaling.original_context_length"
_ATTENTION_FACTOR = "rope.scaling.attn_factor"
_BETA_FAST, _BETA_SLOW = "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"
_SOFTCAP, _LOGITS_SOFTCAP = "attn_logit_softcapping", "final_logit_softcapping"
_ATTENTION_SCALE = "attention.scale"

_SIZES = {_BLOCK_COUNT, _CONTEXT, _EMBEDDING, _FEED_FORWARD, _HEADS, _KV_HEADS, _KEY_LENGTH}
_ROPE_KEYS = {
    _ROPE_DIM,
    _ROPE_BASE,
    _SCALING,
    _SCALING_FACTOR,
    _ORIGINAL_CONTEXT,
    _ATTENTION_FACTOR,
}
_YARN_KEYS = {_BETA_FAST, _BETA_SLOW}
# Keys that no decoder reads, and keys that change nothing with the one value given here.
_NOTES = {"vocab_size", "rope.scaling.finetuned", "tensor_data_layout"}
_NO_EFFECT: Mapping[str, float] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "embedding_scale": 1,
    "expert_count": 0,
    "expert_shared_count": 0,
    "expert_used_count": 0,
    "logit_scale": 1,
    "nextn_predict_layers": 0,
    "residual_scale": 1,
    "rope.scale_linear": 1,
    "rope.scaling.yarn_log_multiplier": 0,
}


_OTHER_TYPES = {
    "adapter": "the file is a LoRA adapter: merge it into its base model with llama-export-lora",
    "mmproj": "the file is a projector of images or sound, which belongs to a text model: name that one",
    "imatrix": "the file holds statistics for quantization, no model",
}


@dataclass(frozen=True)
class _Family:
    """How a GGUF architecture maps onto one of Hugging Face's.

    Args:
        architecture: as in config.json.
        keys: of the metadata, "<architecture>." left out, that it may have beside the sizes.
    """

    architecture: str
    keys: frozenset[str]


def _family(architecture: str, *keys: str) -> _Family:
    return _Family(architecture, frozenset(_SIZES | {_VALUE_LENGTH, *keys}))


_FAMILIES: Mapping[str, _Family] = {
    "llama": _family("LlamaForCausalLM", _RMS_EPSILON, _WINDOW, *_ROPE_KEYS, *_YARN_KEYS),
    "qwen2": _family("Qwen2ForCausalLM", _RMS_EPSILON, *_ROPE_KEYS, *_YARN_KEYS),
    "qwen3": _family("Qwen3ForCausalLM", _RMS_EPSILON, *_ROPE_KEYS, *_YARN_KEYS),
    "gemma2": _family(
        "Gemma2ForCausalLM",
        *(_RMS_EPSILON, _WINDOW, _SOFTCAP, _LOGITS_SOFTCAP, _ATTENTION_SCALE),
        *(_ROPE_DIM, _ROPE_BASE),
    ),
    "phi3": _family("Phi3ForCausalLM", _RMS_EPSILON, _WINDOW, *_ROPE_KEYS),
    "gpt2": _family("GPT2LMHeadModel", _EPSILON),
}


def read_gguf_architecture(checkpoint: GgufCheckpoint) -> str:
    """`general.architecture`.

    Raises:
        ValueError: it is missing or not supported, or the file holds no model.
    """
    metadata = JsonObject(checkpoint.path, checkpoint.metadata)
    if (kind := metadata.string("general.type", "model")) != "model":
        raise metadata.error("general.type", _OTHER_TYPES.get(kind, 'must be "model"'))
    if (architecture := metadata.string("general.architecture")) not in _FAMILIES:
        raise metadata.error("general.architecture", f"supported are {', '.join(_FAMILIES)}")
    return architecture


def read_gguf_config(checkpoint: GgufCheckpoint, float_tensors: Mapping[str, Any]) -> ModelConfig:
    """The facts of a GGUF file.

    Args:
        checkpoint: the files.
        float_tensors: the tensors that are facts rather than weights: rotary factors.

    Raises:
        ValueError: a key is missing, has a value that we do not support, or is one that we do not know.
    """
    architecture = read_gguf_architecture(checkpoint)
    metadata = _Metadata(checkpoint, architecture)
    metadata.check_keys(_FAMILIES[architecture].keys)
    values = _gpt2(metadata) if architecture == "gpt2" else _llama_like(metadata, float_tensors)
    config = parse_model_config(JsonObject(checkpoint.path, values))
    attention = config.layers[0].attention
    rope = attention.rope
    if rope is not None and rope.dim != metadata.get(_ROPE_DIM, rope.dim):
        raise metadata.error(_ROPE_DIM, f"must be an even share of the head's {attention.head_dim}")
    return replace(config, eos_token_ids=_eos_token_ids(checkpoint, config.vocab_size))


def read_gguf_sampling_params(checkpoint: GgufCheckpoint) -> SamplingParams:
    """`SamplingParams()` with what `general.sampling.*` says instead."""
    names = {
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "penalty_repeat": "repetition_penalty",
    }
    given = {
        name: _decimal(value)
        for key, name in names.items()
        if (value := checkpoint.metadata.get(f"general.sampling.{key}")) is not None
    }
    try:
        return SamplingParams(**given)
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: general.sampling: {error}") from None


class _Metadata:
    """The keys of a file that belong to its architecture, and its tensors' shapes."""

    def __init__(self, checkpoint: GgufCheckpoint, architecture: str) -> None:
        self.architecture = architecture
        self.tensors = checkpoint
        self._prefix = f"{architecture}."
        self._values = JsonObject(checkpoint.path, checkpoint.metadata)

    def check_keys(self, known: frozenset[str]) -> None:
        """Raises a ValueError for a key that may change what the model computes, in a way unknown here."""
        for full_key, value in self._values.values.items():
            key = full_key.removeprefix(self._prefix)
            if key == full_key or key in known or key in _NOTES:
                continue
            if key not in _NO_EFFECT:
                raise self.error(key, "not supported")
            if value != _NO_EFFECT[key]:
                raise self.error(key, f"supported is {json.dumps(_NO_EFFECT[key])}")

    def error(self, key: str, allowed: str) -> ValueError:
        return self._values.error(self._prefix + key, allowed)

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.values.get(self._prefix + key, default)

    def integer(self, key: str) -> int:
        return self._values.integer(self._prefix + key)

    def optional_integer(self, key: str) -> int | None:
        """None also for 0, which stands for none."""
        return self.integer(key) if self.get(key) else None

    def number(self, key: str) -> Any:
        return _decimal(self._values.number(self._prefix + key))

    def optional_number(self, key: str) -> float | None:
        number = self._values.optional_number(self._prefix + key)
        return None if number is None else _decimal(number)

    def optional_string(self, key: str) -> str | None:
        return self._values.string(self._prefix + key) if self.get(key) is not None else None

    def vocab_size(self) -> int:
        """V. Files name it in several ways; the embedding decides."""
        if "token_embd.weight" not in self.tensors:
            raise ValueError(f"{self._values.path}: tensor token_embd.weight is missing")
        return self.tensors.info("token_embd.weight").shape[0]

    def bos_token_id(self) -> Any:
        return self._values.values.get("tokenizer.ggml.bos_token_id")


def _llama_like(metadata: _Metadata, float_tensors: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a model with rope."""
    family = _FAMILIES[metadata.architecture]
    hidden_size, num_heads = metadata.integer(_EMBEDDING), metadata.integer(_HEADS)
    head_dim = metadata.optional_integer(_KEY_LENGTH) or hidden_size // num_heads
    if head_dim == 0:
        raise metadata.error(_HEADS, f"must be at most the embedding's {hidden_size}")
    if metadata.get(_VALUE_LENGTH, head_dim) != head_dim:
        raise metadata.error(_VALUE_LENGTH, f"must be the head's {head_dim}")
    values: dict[str, Any] = {
        "architectures": [family.architecture],
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer(_FEED_FORWARD),
        "num_hidden_layers": metadata.integer(_BLOCK_COUNT),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.optional_integer(_KV_HEADS) or num_heads,
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer(_CONTEXT),
        "rms_norm_eps": metadata.number(_RMS_EPSILON),
        "vocab_size": metadata.vocab_size(),
        "tie_word_embeddings": "output.weight" not in metadata.tensors,
        "bos_token_id": metadata.bos_token_id(),
        "eos_token_id": None,
        "rope_parameters": (rope := _rope(metadata, head_dim, float_tensors)),
    }
    if "original_max_position_embeddings" in rope:  # where Phi-3 has it
        values["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    if (window := metadata.optional_integer(_WINDOW)) is not None:
        values["sliding_window"] = window
    if metadata.architecture == "llama":
        if window is not None:
            values["architectures"] = ["MistralForCausalLM"]
        values["attention_bias"] = "blk.0.attn_q.bias" in metadata.tensors
        values["mlp_bias"] = "blk.0.ffn_gate.bias" in metadata.tensors
    if metadata.architecture == "gemma2":
        values |= _gemma2(metadata, hidden_size, num_heads, head_dim)
    return values


def _gemma2(metadata: _Metadata, hidden_size: int, num_heads: int, head_dim: int) -> dict[str, Any]:
    is_27b = metadata.integer(_BLOCK_COUNT) == _GEMMA2_27B_LAYERS
    query_scalar: float = hidden_size // num_heads if is_27b else head_dim
    if (scale := metadata.optional_number(_ATTENTION_SCALE)) is not None:
        query_scalar = scale**-2
    softcaps = {
        "attn_logit_softcapping": metadata.optional_number(_SOFTCAP),
        "final_logit_softcapping": metadata.optional_number(_LOGITS_SOFTCAP),
    }
    given = {key: softcap for key, softcap in softcaps.items() if softcap is not None}
    return {"query_pre_attn_scalar": query_scalar, **given}


def _gpt2(metadata: _Metadata) -> dict[str, Any]:
    """config.json of GPT-2."""
    for key in (_KV_HEADS, _KEY_LENGTH, _VALUE_LENGTH):
        expected = metadata.integer(_HEADS)
        if key != _KV_HEADS:
            expected = metadata.integer(_EMBEDDING) // expected
        if metadata.get(key, expected) != expected:
            raise metadata.error(key, f"must be {expected}")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": metadata.integer(_EMBEDDING),
        "n_inner": metadata.integer(_FEED_FORWARD),
        "n_layer": metadata.integer(_BLOCK_COUNT),
        "n_head": metadata.integer(_HEADS),
        "n_positions": metadata.integer(_CONTEXT),
        "layer_norm_epsilon": metadata.number(_EPSILON),
        "vocab_size": metadata.vocab_size(),
        "tie_word_embeddings": "output.weight" not in metadata.tensors,
        "bos_token_id": metadata.bos_token_id(),
        "eos_token_id": None,
    }


def _rope(metadata: _Metadata, head_dim: int, float_tensors: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of config.json."""
    dim = metadata.optional_integer(_ROPE_DIM) or head_dim
    rope: dict[str, Any] = {"rope_theta": metadata.optional_number(_ROPE_BASE) or 10_000.0}
    if dim != head_dim:
        if metadata.architecture != "phi3":
            raise metadata.error(_ROPE_DIM, f"must be the head's {head_dim}")
        rope["partial_rotary_factor"] = dim / head_dim
    scaling = metadata.optional_string(_SCALING) or "none"
    factor = metadata.optional_number(_SCALING_FACTOR)
    original = metadata.optional_integer(_ORIGINAL_CONTEXT) or metadata.integer(_CONTEXT)
    attention_factor = metadata.optional_number(_ATTENTION_FACTOR)
    if {"rope_factors_long.weight", "rope_factors_short.weight"} <= float_tensors.keys():
        rope |= {
            "rope_type": "longrope",
            "long_factor": _factors(float_tensors["rope_factors_long.weight"]),
            "short_factor": _factors(float_tensors["rope_factors_short.weight"]),
            "original_max_position_embeddings": original,
            "attention_factor": attention_factor,
        }
    elif "rope_freqs.weight" in float_tensors:
        # Llama 3.1's interpolation, worked out by the converter. Divisors of each frequency are what
        # LongRoPE has, here the same at all lengths.
        factors = _factors(float_tensors["rope_freqs.weight"])
        rope |= {
            "rope_type": "longrope",
            "long_factor": factors,
            "short_factor": factors,
            "original_max_position_embeddings": original,
            "attention_factor": 1.0,
        }
    elif scaling == "linear":
        rope |= {"rope_type": "linear", "factor": factor}
    elif scaling == "yarn":
        if factor is not None and attention_factor is not None:  # llama.cpp multiplies YaRN's own
            attention_factor *= 0.1 * math.log(factor) + 1.0
        rope |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": attention_factor,
            "beta_fast": metadata.optional_number(_BETA_FAST),
            "beta_slow": metadata.optional_number(_BETA_SLOW),
        }
    elif scaling != "none":
        raise metadata.error(_SCALING, "supported are none, linear and yarn")
    elif attention_factor not in (None, 1.0):
        raise metadata.error(_ATTENTION_FACTOR, "must be 1 where nothing is scaled")
    return rope


def _factors(tensor: Any) -> list[float]:
    return [_decimal(factor) for factor in as_floats(tensor).tolist()]


def _eos_token_ids(checkpoint: GgufCheckpoint, vocab_size: int) -> tuple[int, ...]:
    """Every token that ends an answer: of text, of a turn, of a message."""
    metadata = JsonObject(checkpoint.path, checkpoint.metadata)
    names = ("eos", "eot", "eom")
    found = [metadata.token_ids(f"tokenizer.ggml.{name}_token_id") for name in names]
    token_ids = dict.fromkeys(token_id for ids in found for token_id in ids)
    return tuple(token_id for token_id in token_ids if token_id < vocab_size)


def _decimal(value: float) -> Any:
    """The shortest decimal of an f32: what config.json said before it was rounded, such as 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
