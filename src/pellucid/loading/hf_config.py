"""Converts config.json and generation_config.json to a ModelConfig and default sampling parameters.

One function per family. A missing key means what it means in transformers' configuration of that
family, except for sizes, which have no default here: a guess would only be wrong later.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pellucid.config import (
    Activation,
    AttentionConfig,
    LayerConfig,
    MLPConfig,
    ModelConfig,
    RopeConfig,
)
from pellucid.loading.json_object import MAX_INTEGER, JsonObject, read_json_object
from pellucid.loading.quantized_layout import read_quantization_config
from pellucid.loading.rope_config import read_rope
from pellucid.sampling_params import SamplingParams

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
# What vLLM takes from generation_config.json, and typical_p. Limits on length are the caller's.
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")

_MAX_LAYERS = 10_000  # far above any model: a damaged count must not fill the memory
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"

Windows: TypeAlias = tuple[int | None, ...]  # of each layer
_NOTHING_MORE: Mapping[str, Any] = {}


def read_model_config(directory: Path) -> ModelConfig:
    """The facts of the checkpoint in `directory`.

    Raises:
        ValueError: config.json is missing or is not JSON, its architecture is not supported, or a
            key has a value that we do not support. The message names the file, the key, the value
            and what is allowed.
    """
    config = read_json_object(directory / CONFIG_FILE)
    model = parse_model_config(config)
    read_quantization_config(config)
    eos_token_ids = dict.fromkeys([*model.eos_token_ids, *_generation_eos_token_ids(directory)])
    # Small models keep the ids of large ones; an id beyond the vocabulary is never sampled.
    return replace(model, eos_token_ids=tuple(i for i in eos_token_ids if i < model.vocab_size))


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
        name: value for name in _SAMPLING_KEYS if (value := config.values.get(name)) is not None
    }
    if not config.boolean("do_sample", True):
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_model_config(config: JsonObject) -> ModelConfig:
    """The facts that config.json alone holds. Raises as `read_model_config` does."""
    architectures = config.optional_strings("architectures")
    if not architectures or architectures[0] not in _FAMILIES:
        raise config.error("architectures", f"supported are {', '.join(_FAMILIES)}")
    model = _FAMILIES[architectures[0]](config)
    if model.context_length > MAX_INTEGER:
        raise ValueError(
            f"{config.path}: max_position_embeddings times the rope factor is a context of"
            f" {model.context_length} tokens: at most {MAX_INTEGER}"
        )
    return model


def supported_architectures() -> tuple[str, ...]:
    """The values of `architectures` in config.json that load."""
    return tuple(_FAMILIES)


def _generation_eos_token_ids(directory: Path) -> tuple[int, ...]:
    path = directory / GENERATION_CONFIG_FILE
    return read_json_object(path).token_ids("eos_token_id") if path.exists() else ()


# -- families --------------------------------------------------------------------------------------


def _llama(config: JsonObject) -> ModelConfig:
    attention_bias = config.boolean("attention_bias", False)
    return _llama_like(
        config,
        max_position=2048,
        windows=partial(_one_window, window=None),
        attention={"qkv_bias": attention_bias, "o_bias": attention_bias},
        mlp_bias=config.boolean("mlp_bias", False),
    )


def _mistral(config: JsonObject) -> ModelConfig:
    return _llama_like(
        config,
        max_position=131_072,
        num_kv_heads=8,
        windows=partial(_one_window, window=config.optional_integer("sliding_window", 4096)),
    )


def _qwen2(config: JsonObject) -> ModelConfig:
    return _qwen_like(config, head_dim=None, attention={"qkv_bias": True})


def _qwen3(config: JsonObject) -> ModelConfig:
    attention_bias = config.boolean("attention_bias", False)
    return _qwen_like(
        config,
        head_dim=128,
        attention={"qkv_bias": attention_bias, "o_bias": attention_bias, "qk_norm": "head"},
    )


def _qwen_like(
    config: JsonObject, head_dim: int | None, attention: Mapping[str, Any]
) -> ModelConfig:
    return _llama_like(
        config,
        max_position=32_768,
        num_kv_heads=32,
        head_dim=head_dim,
        bos_token_id=None,
        eos_token_id=None,
        windows=_qwen_windows,
        attention=attention,
    )


def _gemma2(config: JsonObject) -> ModelConfig:
    if config.values.get("use_bidirectional_attention"):
        raise config.error(
            "use_bidirectional_attention",
            "only causal attention is supported: must be false or null",
        )
    attention_bias = config.boolean("attention_bias", False)
    model = _llama_like(
        config,
        max_position=8192,
        num_kv_heads=4,
        head_dim=256,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        bos_token_id=2,
        eos_token_id=1,
        tie_word_embeddings=True,
        windows=_gemma2_windows,
        attention={
            "scale": config.number("query_pre_attn_scalar", 256) ** -0.5,
            "softcap": config.optional_number("attn_logit_softcapping", 50.0),
            "qkv_bias": attention_bias,
            "o_bias": attention_bias,
        },
    )
    return replace(
        model,
        logits_softcap=config.optional_number("final_logit_softcapping", 30.0),
        embedding_scale=math.sqrt(model.hidden_size),
    )


def _phi3(config: JsonObject) -> ModelConfig:
    return _llama_like(
        config,
        max_position=4096,
        norm_eps=1e-5,
        eos_token_id=32_000,
        windows=partial(_one_window, window=config.optional_integer("sliding_window")),
        rope_reader=partial(
            read_rope,
            partial_rotary=True,
            default_original_max_position=4096,
            type_aliases={"su": "longrope", "yarn": "longrope"},  # early checkpoints' names
        ),
    )


def _gpt2(config: JsonObject) -> ModelConfig:
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.boolean(key, False):
            raise config.error(key, "not supported: must be false")
    hidden_size = config.integer("n_embd")
    num_heads = config.integer("n_head")
    num_layers = config.integer("n_layer", maximum=_MAX_LAYERS)
    head_dim = _even_share(config, "n_embd", hidden_size, num_heads)
    layer = LayerConfig(
        AttentionConfig(
            num_heads,
            num_heads,
            head_dim,
            scale=head_dim**-0.5 if config.boolean("scale_attn_weights", True) else 1.0,
            rope=None,
            qkv_bias=True,
            o_bias=True,
        ),
        MLPConfig(
            config.optional_integer("n_inner") or 4 * hidden_size,
            _activation(config, "activation_function", "gelu_new"),
            gated=False,
            bias=True,
        ),
    )
    return ModelConfig(
        architecture="GPT2LMHeadModel",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        layers=(layer,) * num_layers,
        max_position_embeddings=config.integer("n_positions", 1024),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        tie_word_embeddings=config.boolean("tie_word_embeddings", True),
        bos_token_id=_bos_token_id(config, 50_256),
        eos_token_ids=config.token_ids("eos_token_id", 50_256),
    )


_FAMILIES: Mapping[str, Callable[[JsonObject], ModelConfig]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "GPT2LMHeadModel": _gpt2,
    "Gemma2ForCausalLM": _gemma2,
    "Phi3ForCausalLM": _phi3,
}

# -- what families share ---------------------------------------------------------------------------


def _llama_like(
    config: JsonObject,
    *,
    max_position: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    norm_eps: float = 1e-6,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    bos_token_id: int | None = 1,
    eos_token_id: int | None = 2,
    tie_word_embeddings: bool = False,
    windows: Callable[[JsonObject, int], Windows],
    rope_reader: Callable[[JsonObject, int, int], RopeConfig] = read_rope,
    attention: Mapping[str, Any] = _NOTHING_MORE,
    mlp_bias: bool = False,
) -> ModelConfig:
    """Llama and what descends from it.

    Args:
        config: config.json.
        max_position: positions where config.json does not say, as the next six.
        num_kv_heads: None is one per query head.
        head_dim: None is an even share of the hidden size.
        norm_eps: of the RMS norms.
        bos_token_id: None is none.
        eos_token_id: None is none.
        tie_word_embeddings: whether the head is the embedding.
        activation: the key that names it, and the name where that is missing.
        windows: reads each layer's window from config.json and the number of layers.
        rope_reader: reads the rotary embedding from config.json, D and max_position_embeddings.
        attention: further fields of `AttentionConfig`.
        mlp_bias: whether the matrices of the MLP have biases.
    """
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers", maximum=_MAX_LAYERS)
    num_kv_heads = config.optional_integer("num_key_value_heads", num_kv_heads) or num_heads
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"must divide num_attention_heads={num_heads}")
    head_dim = config.optional_integer("head_dim", head_dim)
    if head_dim is None:
        head_dim = _even_share(config, "hidden_size", hidden_size, num_heads)
    max_position = config.integer("max_position_embeddings", max_position)
    common: dict[str, Any] = {"scale": head_dim**-0.5, **attention}
    common["rope"] = rope_reader(config, head_dim, max_position)
    mlp = MLPConfig(
        config.integer("intermediate_size"), _activation(config, *activation), bias=mlp_bias
    )
    layers = tuple(
        LayerConfig(
            AttentionConfig(num_heads, num_kv_heads, head_dim, window=window, **common), mlp
        )
        for window in windows(config, num_layers)
    )
    return ModelConfig(
        architecture=config.values["architectures"][0],
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        layers=layers,
        max_position_embeddings=max_position,
        norm_eps=config.number("rms_norm_eps", norm_eps),
        tie_word_embeddings=config.boolean("tie_word_embeddings", tie_word_embeddings),
        bos_token_id=_bos_token_id(config, bos_token_id),
        eos_token_ids=config.token_ids("eos_token_id", eos_token_id),
    )


def _even_share(config: JsonObject, key: str, size: int, num_heads: int) -> int:
    if size % num_heads:
        raise config.error(key, f"must be a multiple of the number of attention heads, {num_heads}")
    return size // num_heads


def _activation(config: JsonObject, key: str, default: str) -> Activation:
    name = config.string(key, default)
    if name not in _ACTIVATIONS:
        raise config.error(key, f"supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _bos_token_id(config: JsonObject, default: int | None) -> int | None:
    token_ids = config.token_ids("bos_token_id", default)
    if len(token_ids) > 1:
        raise config.error("bos_token_id", "must be one token id or null")
    return token_ids[0] if token_ids else None


def _one_window(config: JsonObject, num_layers: int, window: int | None) -> Windows:
    only = _FULL if window is None else _SLIDING
    if set(config.optional_strings("layer_types") or [only]) != {only}:
        raise config.error(
            "layer_types", f"this architecture has one type, with this sliding_window: {only}"
        )
    return (window,) * num_layers


def _qwen_windows(config: JsonObject, num_layers: int) -> Windows:
    window = config.optional_integer("sliding_window", 4096)
    if not config.boolean("use_sliding_window", False):
        window = None
    num_full = config.integer("max_window_layers", 28, minimum=0)
    default = [_FULL if i < num_full else _SLIDING for i in range(num_layers)]
    return _mixed_windows(config, window, default)


def _gemma2_windows(config: JsonObject, num_layers: int) -> Windows:
    window = config.optional_integer("sliding_window", 4096)
    default = [_FULL if i % 2 else _SLIDING for i in range(num_layers)]
    return _mixed_windows(config, window, default)


def _mixed_windows(config: JsonObject, window: int | None, default: list[str]) -> Windows:
    """`window` where `layer_types` says sliding; `default` are the types if it says nothing."""
    layer_types = config.optional_strings("layer_types") or default
    if len(layer_types) != len(default) or not {_FULL, _SLIDING}.issuperset(layer_types):
        raise config.error("layer_types", f"must be {len(default)} times {_FULL} or {_SLIDING}")
    return tuple(window if layer_type == _SLIDING else None for layer_type in layer_types)
