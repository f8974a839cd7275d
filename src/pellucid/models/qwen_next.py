"""Qwen3.5 (and 3.6), its mixture of experts, and Qwen3-Next: three of four layers are gated delta nets.

The other layers have attention with a gated output. Checkpoints store the weights of norms minus 1, except those of
the delta nets' norms.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import GatedDeltaNetConfig, LayerConfig, ModelConfig
from pellucid.models import config_json, mixture
from pellucid.models import gguf_metadata as gguf
from pellucid.models.family import Family, GgufFamily
from pellucid.models.rope_config import FULL
from pellucid.models.stored_weights import (
    LLAMA_WEIGHTS,
    QK_NORM_WEIGHTS,
    QKV,
    NegativeExp,
    Recipe,
    Rows,
    Source,
    StoredWeight,
    Tensor,
    convolution,
    in_layers,
    stored,
    with_offset,
)

MAX_HEADS = 65_536  # of a delta net
MAX_HEAD_DIM = 1024
MAX_KERNEL_SIZE = 256  # rows that a convolution reads
_LINEAR = "linear_attention"  # a type of layers in config.json

# -- config.json -----------------------------------------------------------------------------------


def _read_qwen35_moe(config: JsonObject) -> ModelConfig:
    # Layers without experts it has none, and so no width of theirs.
    width = config.integer("shared_expert_intermediate_size")
    model = _hybrid(config, intermediate_size=width)
    experts = mixture.read_experts(config, normalize=True, shared_gate=True)
    return replace(model, layers=tuple(replace(layer, experts=experts) for layer in model.layers))


def _read_qwen3_next(config: JsonObject) -> ModelConfig:
    experts = mixture.read_experts(
        config, normalize=config.boolean("norm_topk_prob"), shared_gate=True
    )
    return mixture.some_sparse(config, _hybrid(config), experts, mixture.read_shared_expert(config))


def _hybrid(config: JsonObject, **sizes: int) -> ModelConfig:
    """The model with an MLP in all layers; `sizes` stand for keys of config.json."""
    if (
        config.string("hidden_act") != "silu"
    ):  # also between the delta nets' convolutions and states
        raise config.error("hidden_act", "supported is silu")
    model = config_json.llama_like(
        config.without("layer_types").with_values(**sizes),  # its types are not those of windows
        ropes=partial(config_json.same_rope, partial_rotary=True),
        attention={**config_json.attention_biases(config), "qk_norm": "head", "gated_output": True},
    )
    is_full = _full_layers(config, model.num_layers)
    return config_json.with_recurrent_layers(model, is_full, _read_net(config))


def _read_net(config: JsonObject) -> GatedDeltaNetConfig:
    num_key_heads = config.integer("linear_num_key_heads", maximum=MAX_HEADS)
    num_value_heads = config.integer("linear_num_value_heads", maximum=MAX_HEADS)
    if num_value_heads % num_key_heads:
        raise config.error(
            "linear_num_value_heads", f"must be a multiple of linear_num_key_heads={num_key_heads}"
        )
    return GatedDeltaNetConfig(
        num_key_heads,
        num_value_heads,
        config.integer("linear_key_head_dim", maximum=MAX_HEAD_DIM),
        config.integer("linear_value_head_dim", maximum=MAX_HEAD_DIM),
        config.integer("linear_conv_kernel_dim", maximum=MAX_KERNEL_SIZE),
        tiled=config.boolean(_TILED, False),
    )


def _full_layers(config: JsonObject, num_layers: int) -> list[bool]:
    """Which layers have attention: at least one."""
    layer_types = config.optional_strings("layer_types")
    if layer_types is None:
        period = config.integer("full_attention_interval", 4)
        if period > num_layers:
            raise config.error("full_attention_interval", f"must be at most {num_layers}")
        return [(layer + 1) % period == 0 for layer in range(num_layers)]
    return config_json.layers_with_attention(config, layer_types, num_layers, _LINEAR)


# -- names -----------------------------------------------------------------------------------------


def _queries_first(layer: LayerConfig) -> list[int]:
    """Rows of q_proj, [query | gate] of each head -> all queries, then all gates."""
    attention = layer.attention
    assert attention is not None
    size = attention.head_dim
    starts = range(0, 2 * attention.num_heads * size, 2 * size)
    queries = [start + row for start in starts for row in range(size)]
    return [*queries, *(row + size for row in queries)]


_QKV, _GATED_QUERIES = LLAMA_WEIGHTS[QKV], Rows(_queries_first)
_MLP_NORM = in_layers({"mlp_norm": stored("post_attention_layernorm", "post_attention_norm")})
_HYBRID_WEIGHTS: Mapping[str, StoredWeight] = {
    **with_offset({**LLAMA_WEIGHTS, **QK_NORM_WEIGHTS, **_MLP_NORM}, 1.0),
    QKV: StoredWeight(_QKV.hf.with_step(_GATED_QUERIES, 0), _QKV.gguf.with_step(_GATED_QUERIES, 0)),
    **in_layers(
        {
            "delta_conv": convolution("linear_attn.conv1d", "ssm_conv1d"),
            "delta_decay": stored(Tensor("linear_attn.A_log", (NegativeExp(),)), Tensor("ssm_a")),
            "delta_step": stored(Tensor("linear_attn.dt"), "ssm_dt"),
            "delta_norm": stored("linear_attn.norm", "ssm_norm"),
            "delta_out_proj": stored("linear_attn.out_proj", "ssm_out"),
        }
    ),
}
_QWEN35_WEIGHTS: Mapping[str, StoredWeight] = {
    **_HYBRID_WEIGHTS,
    **in_layers(
        {
            "delta_qkv_proj": stored("linear_attn.in_proj_qkv", "attn_qkv"),
            "delta_gate_proj": stored("linear_attn.in_proj_z", "attn_gate"),
            "delta_beta_proj": stored("linear_attn.in_proj_b", "ssm_beta"),
            "delta_alpha_proj": stored("linear_attn.in_proj_a", "ssm_alpha"),
        }
    ),
}


def _next_rows(
    layer: LayerConfig, widths_of: Callable[[GatedDeltaNetConfig], tuple[int, ...]], wanted: slice
) -> list[int]:
    """Rows of a matrix that holds parts of so many rows for each k-head: the wanted parts, each of all k-heads
    together."""
    net = layer.recurrence
    assert isinstance(net, GatedDeltaNetConfig)
    widths = widths_of(net)
    size, rows = sum(widths), list[int]()
    for part in range(len(widths))[wanted]:
        first = sum(widths[:part])
        for head in range(net.num_key_heads):
            start = head * size + first
            rows += range(start, start + widths[part])
    return rows


def _next_widths(net: GatedDeltaNetConfig) -> tuple[int, ...]:
    """Rows of q, k, v and z of a k-head in Qwen3-Next's `in_proj_qkvz`."""
    values = net.values_width // net.num_key_heads
    return net.key_dim, net.key_dim, values, values


def _next_step_widths(net: GatedDeltaNetConfig) -> tuple[int, ...]:
    times = net.num_value_heads // net.num_key_heads
    return times, times


_next_qkv = Rows(partial(_next_rows, widths_of=_next_widths, wanted=slice(0, 3)))
_next_gate = Rows(partial(_next_rows, widths_of=_next_widths, wanted=slice(3, 4)))
_next_beta = (Rows(partial(_next_rows, widths_of=_next_step_widths, wanted=slice(0, 1))),)
_next_alpha = (Rows(partial(_next_rows, widths_of=_next_step_widths, wanted=slice(1, 2))),)

_STEPS = "linear_attn.in_proj_ba"
_QWEN3_NEXT_WEIGHTS: Mapping[str, StoredWeight] = {
    **_HYBRID_WEIGHTS,
    **mixture.SHARED_EXPERT_WEIGHTS,
    **in_layers(
        {
            "delta_qkv_proj": stored("linear_attn.in_proj_qkvz", "attn_qkv", _next_qkv),
            "delta_gate_proj": stored("linear_attn.in_proj_qkvz", "attn_gate", _next_gate),
            "delta_beta_proj": stored(Source(_STEPS, _next_beta), Source("ssm_ba", _next_beta)),
            "delta_alpha_proj": stored(Source(_STEPS, _next_alpha), Source("ssm_ba", _next_alpha)),
        }
    ),
}
# llama.cpp's first converter left q, k, v and the gate interleaved by k-head.
_INTERLEAVED: Mapping[str, Recipe] = {
    f"layers.{{i}}.delta_{name}_proj": Recipe((Source("blk.{i}.ssm_in", (rows,)),))
    for name, rows in (("qkv", _next_qkv), ("gate", _next_gate))
}

# -- GGUF ------------------------------------------------------------------------------------------

_TILED = "linear_tiled_heads"  # not in config.json: llama.cpp's order of v-heads
_INTERVAL, _RECURRENT = "full_attention_interval", "attention.recurrent_layers"
_REORDERED = "ssm.v_head_reordered"
_KERNEL, _STATE, _GROUPS = "ssm.conv_kernel", "ssm.state_size", "ssm.group_count"
_RANK, _INNER = "ssm.time_step_rank", "ssm.inner_size"
_KEYS = gguf.NORM_AND_ROPE_KEYS | {_INTERVAL, _RECURRENT, _REORDERED}
_KEYS |= {_KERNEL, _STATE, _GROUPS, _RANK, _INNER}


def _gguf_qwen35(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    layer_types, num_kv_heads = _layer_types(metadata)
    metadata = metadata.with_value(gguf.KV_HEADS, num_kv_heads)
    num_value_heads = metadata.integer(_RANK)
    inner = metadata.integer(_INNER)
    if inner % num_value_heads:
        raise metadata.error(_INNER, f"must be a multiple of {_RANK}={num_value_heads}")
    return {
        **gguf.llama_like_values(metadata, partial_rotary=True),
        "layer_types": layer_types,
        "linear_conv_kernel_dim": metadata.integer(_KERNEL),
        "linear_key_head_dim": metadata.integer(_STATE),
        "linear_value_head_dim": inner // num_value_heads,
        "linear_num_key_heads": metadata.integer(_GROUPS),
        "linear_num_value_heads": num_value_heads,
        # Ollama's converter says so, llama.cpp's writes no other order.
        _TILED: metadata.boolean(_REORDERED, True),
    }


def _layer_types(metadata: gguf.GgufMetadata) -> tuple[list[str], int]:
    """`layer_types` of config.json, and the number of kv-heads of layers with attention."""
    count = gguf.num_layers(metadata)
    heads = metadata.of_layers(gguf.KV_HEADS, minimum=0)
    if metadata.get(_RECURRENT) is not None:
        is_full = [not flag for flag in metadata.flags_of_layers(_RECURRENT)]
    elif 0 in heads:  # delta nets have none
        is_full = [number > 0 for number in heads]
    else:
        interval = metadata.optional_integer(_INTERVAL) or 4
        is_full = [(layer + 1) % interval == 0 for layer in range(count)]
    if not any(is_full):
        key = _INTERVAL if metadata.get(_RECURRENT) is None else _RECURRENT
        raise metadata.error(key, "at least one layer must have attention")
    used = {number for number, full in zip(heads, is_full, strict=True) if full}
    if len(used) != 1 or 0 in used:
        raise metadata.error(
            gguf.KV_HEADS, "must be the same for all layers with attention, at least 1"
        )
    return [FULL if full else _LINEAR for full in is_full], used.pop()


def _gguf_qwen35_moe(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    if metadata.get(gguf.FEED_FORWARD) is None:  # all layers have experts
        metadata = metadata.with_value(gguf.FEED_FORWARD, mixture.gguf_shared_width(metadata))
    return {
        **_gguf_qwen35(metadata),
        **mixture.gguf_experts(metadata),
        "moe_intermediate_size": mixture.gguf_expert_width(metadata),
        "shared_expert_intermediate_size": mixture.gguf_shared_width(metadata),
    }


def _gguf_qwen3_next(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    # llama.cpp has experts in all layers, and leaves v-heads in the order of config.json.
    return {
        **_gguf_qwen35_moe(metadata),
        "norm_topk_prob": mixture.gguf_normalizes(metadata, default=True),
        _TILED: metadata.boolean(_REORDERED, False),
    }


QWEN35 = Family(
    architectures=("Qwen3_5ForCausalLM",),
    model_types=("qwen3_5_text",),
    read_config=_hybrid,
    weights=_QWEN35_WEIGHTS,
    gguf=GgufFamily("qwen35", _KEYS, _gguf_qwen35),
)

QWEN35_MOE = Family(
    architectures=("Qwen3_5MoeForCausalLM",),
    model_types=("qwen3_5_moe_text",),
    read_config=_read_qwen35_moe,
    weights={**_QWEN35_WEIGHTS, **mixture.SHARED_EXPERT_WEIGHTS},
    variants=mixture.STACKED_EXPERTS,
    gguf=GgufFamily(
        "qwen35moe",
        _KEYS | mixture.EXPERT_KEYS | {gguf.SHARED_WIDTH},
        _gguf_qwen35_moe,
        variants=mixture.JOINED_GATE_UP,
    ),
)

QWEN3_NEXT = Family(
    architectures=("Qwen3NextForCausalLM",),
    model_types=("qwen3_next",),
    read_config=_read_qwen3_next,
    weights=_QWEN3_NEXT_WEIGHTS,
    variants=mixture.STACKED_EXPERTS,
    gguf=GgufFamily(
        "qwen3next",
        _KEYS | mixture.EXPERT_KEYS | mixture.NORMALIZED_KEYS | {gguf.SHARED_WIDTH},
        _gguf_qwen3_next,
        variants={**mixture.JOINED_GATE_UP, **_INTERLEAVED},
    ),
)
