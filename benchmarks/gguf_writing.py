"""What the scripts that write GGUF files of random weights share: the metadata of a shape, and the end of a file."""

from collections.abc import Callable
from typing import Any

import gguf
from gguf.constants import Keys

from pellucid.facts.model_config import (
    AttentionConfig,
    ExpertsConfig,
    GatedDeltaNetConfig,
    LayerConfig,
    ModelConfig,
    RopeConfig,
    ShortConvolutionConfig,
    YarnRopeScaling,
)
from pellucid.models.registry import family_of


def add_facts(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """The metadata of a model, as far as the record of its family names the keys."""
    family = family_of(config.architecture).gguf
    assert family is not None
    facts = _facts(config)
    named = {key: facts[key] for key in facts if key.removeprefix("{arch}.") in family.keys}
    for key, value in {**_sizes(config), **named}.items():
        name = key.format(arch=family.architecture)
        match value:
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case list():
                writer.add_array(name, value)


def full_rope(config: ModelConfig) -> RopeConfig:
    """The rotation in layers that see all tokens."""
    rope = _full_attention(config).rope
    assert rope is not None
    return rope


def write_out(writer: gguf.GGUFWriter) -> None:
    """Writes all that was added, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _sizes(config: ModelConfig) -> dict[str, Any]:
    """What files of all families say."""
    attention = _full_attention(config)
    return {
        Keys.LLM.BLOCK_COUNT: config.num_layers,
        Keys.LLM.CONTEXT_LENGTH: config.max_position_embeddings,
        Keys.LLM.EMBEDDING_LENGTH: config.hidden_size,
        Keys.LLM.FEED_FORWARD_LENGTH: _one_or_each(config, _width),
        Keys.LLM.VOCAB_SIZE: config.vocab_size,
        Keys.Attention.HEAD_COUNT: attention.num_heads,
        Keys.Attention.HEAD_COUNT_KV: _one_or_each(config, _num_kv_heads),
        Keys.Attention.KEY_LENGTH: attention.head_dim,
        Keys.Attention.VALUE_LENGTH: attention.head_dim,
    }


def _facts(config: ModelConfig) -> dict[str, Any]:
    """What files say if their family has it."""
    attentions, rope = config.attentions, full_rope(config)
    facts: dict[str, Any] = {
        Keys.Attention.LAYERNORM_RMS_EPS: config.norm_eps,
        Keys.Attention.SHARED_KV_LAYERS: sum(
            attention.shared_kv_layer is not None for attention in attentions
        ),
        Keys.LLM.EMBD_LENGTH_PER_LAYER_INP: config.layers[0].embedding_size,
        Keys.LLM.FINAL_LOGIT_SOFTCAPPING: config.logits_softcap,
        Keys.LLM.FULL_ATTENTION_INTERVAL: _first_attention(config) + 1,
        Keys.Rope.DIMENSION_COUNT: rope.dim,
        Keys.Rope.DIMENSION_SECTIONS: _rope_sections(rope),
        Keys.Rope.FREQ_BASE: rope.theta,
    }
    if isinstance(yarn := rope.scaling, YarnRopeScaling):
        facts |= {
            Keys.Rope.SCALING_TYPE: gguf.RopeScalingType.YARN.value,
            Keys.Rope.SCALING_FACTOR: yarn.factor,
            Keys.Rope.SCALING_ORIG_CTX_LEN: yarn.original_max_position,
        }
    for attention in attentions:
        if attention.window is not None and attention.rope is not None:
            facts |= {
                Keys.Attention.SLIDING_WINDOW: attention.window,
                Keys.Attention.SLIDING_WINDOW_PATTERN: [
                    each.window is not None for each in attentions
                ],
                Keys.Attention.KEY_LENGTH_SWA: attention.head_dim,
                Keys.Attention.VALUE_LENGTH_SWA: attention.head_dim,
                Keys.Rope.DIMENSION_COUNT_SWA: attention.rope.dim,
                Keys.Rope.FREQ_BASE_SWA: attention.rope.theta,
            }
    for layer in config.layers:
        facts |= _facts_of_part(layer.experts) | _facts_of_part(layer.recurrence)
    return facts


def _facts_of_part(part: object) -> dict[str, Any]:
    match part:
        case ExpertsConfig():
            return {
                Keys.LLM.EXPERT_COUNT: part.num_experts,
                Keys.LLM.EXPERT_USED_COUNT: part.num_chosen,
                Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: part.intermediate_size,
            }
        case ShortConvolutionConfig():
            return {Keys.ShortConv.L_CACHE: part.kernel_size}
        case GatedDeltaNetConfig():
            return {
                Keys.SSM.CONV_KERNEL: part.kernel_size,
                Keys.SSM.STATE_SIZE: part.key_dim,
                Keys.SSM.GROUP_COUNT: part.num_key_heads,
                Keys.SSM.TIME_STEP_RANK: part.num_value_heads,
                Keys.SSM.INNER_SIZE: part.values_width,
            }
    return {}


def _full_attention(config: ModelConfig) -> AttentionConfig:
    """Of the first layer that sees all tokens; of the first layer, if all have windows."""
    attentions = config.attentions
    return next((each for each in attentions if each.window is None), attentions[0])


def _first_attention(config: ModelConfig) -> int:
    return next(i for i, layer in enumerate(config.layers) if layer.attention is not None)


def _one_or_each(config: ModelConfig, number: Callable[[LayerConfig], int | None]) -> Any:
    """A number of each layer, or one number if all layers that have it have the same."""
    numbers = [number(layer) for layer in config.layers]
    distinct = set(numbers) - {None}
    return distinct.pop() if len(distinct) == 1 else numbers


def _width(layer: LayerConfig) -> int:
    part = layer.mlp or layer.experts
    assert part is not None
    return part.intermediate_size


def _num_kv_heads(layer: LayerConfig) -> int | None:
    """0 says that a layer is a short convolution. What says it of delta nets is their period."""
    if layer.attention is not None:
        return layer.attention.num_kv_heads
    return 0 if isinstance(layer.recurrence, ShortConvolutionConfig) else None


def _rope_sections(rope: RopeConfig) -> list[int]:
    """Rotated pairs of time, height, width and nothing: of text, they have all the same position."""
    pairs = rope.dim // 2
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]
