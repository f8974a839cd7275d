"""Reads the keys of config.json that families share. What a missing key stands for is in config_defaults.json."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import (
    Activation,
    AttentionConfig,
    GatedDeltaNetConfig,
    LayerConfig,
    MLPConfig,
    ModelConfig,
    RopeConfig,
    ShortConvolutionConfig,
)
from pellucid.models.rope_config import FULL, SLIDING, read_rope

MAX_LAYERS = 10_000  # far above any model: a damaged count must not fill the memory
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_NOTHING_MORE: Mapping[str, Any] = {}

Windows: TypeAlias = Sequence[int | None]  # of each layer
WindowsReader: TypeAlias = Callable[[JsonObject, int], Windows]  # and the number of layers
# D, max_position_embeddings, the windows -> the rotation of each layer.
RopesReader: TypeAlias = Callable[[JsonObject, int, int, Windows], Sequence[RopeConfig | None]]


def same_rope(
    config: JsonObject, head_dim: int, max_position: int, windows: Windows, **options: Any
) -> Sequence[RopeConfig | None]:
    """One rotation for all layers; `options` are those of `read_rope`."""
    return [read_rope(config, head_dim, max_position, **options)] * len(windows)


def ropes_by_window(
    config: JsonObject,
    head_dim: int,
    max_position: int,
    windows: Windows,
    *,
    full_head_dim: int | None = None,
    sliding_theta_key: str = "rope_theta",
) -> Sequence[RopeConfig | None]:
    """A rotation for layers with a window, and one for the others, which may have heads of another size."""
    full = read_rope(config, full_head_dim or head_dim, max_position, layer_type=FULL)
    sliding = read_rope(
        config, head_dim, max_position, layer_type=SLIDING, theta_key=sliding_theta_key
    )
    return [full if window is None else sliding for window in windows]


def one_window(window: int | None) -> WindowsReader:
    """All layers have this window."""
    return partial(_one_window, window=window)


def llama_like(
    config: JsonObject,
    *,
    norm_eps: str = "rms_norm_eps",
    activation: str = "hidden_act",
    windows: WindowsReader | None = None,
    ropes: RopesReader = same_rope,
    attention: Mapping[str, Any] = _NOTHING_MORE,
    mlp_bias: bool = False,
) -> ModelConfig:
    """The configuration of Llama and of families that derive from it.

    Args:
        config: config.json.
        norm_eps: the key that says it.
        activation: the key that names it.
        windows: reads each layer's window; None: there are none.
        ropes: reads the rotation of each layer.
        attention: further fields of `AttentionConfig`.
        mlp_bias: whether the matrices of the MLP have biases.
    """
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    num_kv_heads = config.optional_integer("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"must divide num_attention_heads={num_heads}")
    head_dim = config.optional_integer("head_dim")
    if head_dim is None:
        head_dim = even_share(config, "hidden_size", hidden_size, num_heads)
    max_position = config.integer("max_position_embeddings")
    layer_windows = (windows or one_window(None))(config, num_layers)
    layer_ropes = ropes(config, head_dim, max_position, layer_windows)
    fields: dict[str, Any] = {"scale": head_dim**-0.5, **attention}
    mlp = MLPConfig(
        config.integer("intermediate_size"), read_activation(config, activation), bias=mlp_bias
    )
    layers = tuple(
        LayerConfig(
            AttentionConfig(num_heads, num_kv_heads, head_dim, rope=rope, window=window, **fields),
            mlp,
        )
        for window, rope in zip(layer_windows, layer_ropes, strict=True)
    )
    return ModelConfig(
        architecture=config.values["architectures"][0],
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        layers=layers,
        max_position_embeddings=max_position,
        norm_eps=config.number(norm_eps),
        tie_word_embeddings=config.boolean("tie_word_embeddings"),
        bos_token_id=read_bos_token_id(config),
        eos_token_ids=config.token_ids("eos_token_id"),
    )


def even_share(config: JsonObject, key: str, size: int, num_heads: int) -> int:
    """The width of one of `num_heads` heads that make up `size`."""
    if size % num_heads:
        raise config.error(key, f"must be a multiple of the number of attention heads, {num_heads}")
    return size // num_heads


def read_activation(config: JsonObject, key: str) -> Activation:
    """The activation that `key` names; SiLU where a family has no such key."""
    name = config.string(key, "silu")
    if name not in _ACTIVATIONS:
        raise config.error(key, f"supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def read_bos_token_id(config: JsonObject) -> int | None:
    """The one token that begins a text."""
    token_ids = config.token_ids("bos_token_id")
    if len(token_ids) > 1:
        raise config.error("bos_token_id", "must be one token id or null")
    return token_ids[0] if token_ids else None


def attention_biases(config: JsonObject) -> dict[str, bool]:
    """`attention_bias` as fields of `AttentionConfig`: of q, k, v and of the output."""
    bias = config.boolean("attention_bias")
    return {"qkv_bias": bias, "o_bias": bias}


def mixed_windows(config: JsonObject, window: int | None, default: Sequence[str]) -> Windows:
    """`window` where `layer_types` says sliding; `default` are the types if it says nothing."""
    layer_types = config.optional_strings("layer_types") or default
    if len(layer_types) != len(default) or not {FULL, SLIDING}.issuperset(layer_types):
        raise config.error(
            "layer_types", f"must be {len(default)} times (num_hidden_layers) {FULL} or {SLIDING}"
        )
    return tuple(window if layer_type == SLIDING else None for layer_type in layer_types)


def used_window(config: JsonObject) -> int | None:
    """`sliding_window` where `use_sliding_window` says so."""
    return (
        config.optional_integer("sliding_window") if config.boolean("use_sliding_window") else None
    )


def layers_with_attention(
    config: JsonObject, layer_types: Sequence[str], num_layers: int, other: str
) -> list[bool]:
    """Which layers have attention, at least one, where all others are of the type `other`."""
    if len(layer_types) != num_layers or not {FULL, other}.issuperset(layer_types):
        raise config.error(
            "layer_types", f"must be {num_layers} times (num_hidden_layers) {FULL} or {other}"
        )
    if FULL not in layer_types:
        raise config.error("layer_types", f"must have a layer of type {FULL}")
    return [layer_type == FULL for layer_type in layer_types]


def _one_window(config: JsonObject, num_layers: int, window: int | None) -> Windows:
    only = FULL if window is None else SLIDING
    if set(config.optional_strings("layer_types") or [only]) != {only}:
        raise config.error(
            "layer_types", f"this architecture has one type, with this sliding_window: {only}"
        )
    return (window,) * num_layers


def with_recurrent_layers(
    model: ModelConfig,
    is_full: Sequence[bool],
    recurrence: ShortConvolutionConfig | GatedDeltaNetConfig,
) -> ModelConfig:
    """`model` with `recurrence` in place of attention in the layers that are not full."""
    layers = tuple(
        layer if full else replace(layer, attention=None, recurrence=recurrence)
        for layer, full in zip(model.layers, is_full, strict=True)
    )
    return replace(model, layers=layers)
