"""Converts the rope keys of config.json to a RopeConfig.

transformers 5 writes one object, `rope_parameters`; before, `rope_theta` and
`partial_rotary_factor` stood at the top level beside `rope_scaling`. Defaults and derived values
follow transformers' modeling_rope_utils.py.
"""

import math
from collections.abc import Callable, Mapping

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import (
    DynamicRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    LongRopeScaling,
    ProportionalRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnRopeScaling,
)

FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers in config.json

_COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_PROPORTIONAL = "proportional"  # a share of the pairs of whole heads turns
# A note that YaRN's authors left in their checkpoints, and rope of three axes: for text, whose tokens have one
# position, it is plain rope.
_NO_EFFECT = {"finetuned", "mrope_section", "mrope_interleaved"}


def every_nth_full(num_layers: int, period: int) -> list[str]:
    """Layer types of which the last of each `period` is full."""
    return [FULL if (i + 1) % period == 0 else SLIDING for i in range(num_layers)]


def read_rope(
    config: JsonObject,
    head_dim: int,
    max_position: int,
    *,
    theta_key: str = "rope_theta",
    layer_type: str | None = None,
    partial_rotary: bool = False,
    default_original_max_position: int | None = None,
    type_aliases: Mapping[str, str] | None = None,
) -> RopeConfig:
    """The rotary embedding of a checkpoint.

    Args:
        config: config.json.
        head_dim: D.
        max_position: config.json's max_position_embeddings.
        theta_key: at the top level of config.json.
        layer_type: of `FULL` or `SLIDING` layers, where these are rotated differently: each may have an
            object of its own; one for all scales the full layers alone.
        partial_rotary: whether a share of each head may be rotated; else the family rotates whole heads.
        default_original_max_position: where the top level of config.json does not say it.
        type_aliases: names that the family reads as another rope type.

    Raises:
        ValueError: a rope type, key or value that we do not support.
    """
    rope = rope_object(config, layer_type)
    type_key = "rope_type" if "rope_type" in rope.values else "type"
    rope_type = rope.string(type_key, "default")
    rope_type = (type_aliases or {}).get(rope_type, rope_type)
    if rope_type not in _SCALINGS:
        raise rope.error(type_key, f"supported are {', '.join(_SCALINGS)}")
    own_keys, read_scaling = _SCALINGS[rope_type]
    for key in rope.values:
        if key not in own_keys | _COMMON_KEYS | _NO_EFFECT:
            raise rope.error(
                key, f"rope type {rope_type} has no such key; it has {', '.join(sorted(own_keys))}"
            )

    theta = rope.number("rope_theta", config.number(theta_key))
    if theta <= 1:
        own = "rope_theta" in rope.values
        raise (rope if own else config).error("rope_theta" if own else theta_key, "must be above 1")
    dim = head_dim
    if rope_type != _PROPORTIONAL:
        dim = _rotated_components(config, rope, head_dim, partial_rotary)
    original = config.optional_integer(
        "original_max_position_embeddings", default_original_max_position
    )
    if original is None:
        original = rope.integer("original_max_position_embeddings", max_position)
    return RopeConfig(theta, dim, read_scaling(rope, dim, max_position, original))


def rope_object(config: JsonObject, layer_type: str | None = None) -> JsonObject:
    """The object of config.json that describes the rotation. `layer_type` is that of `read_rope`."""
    if config.values.get("rope_parameters") is None:
        config = config.without_values("rope_parameters")  # null: the family's own
    for key in ("rope_scaling", "rope_parameters"):  # the older one first, as transformers does
        rope = config.optional_object(key)
        if rope is None or not rope.values:
            continue
        if layer_type is not None and {FULL, SLIDING} & rope.values.keys():
            own = rope.optional_object(layer_type)
            return own if own is not None else JsonObject(config.path, {}, f"{key}.{layer_type}")
        if layer_type == SLIDING:
            bases = {key: value for key, value in rope.values.items() if key == "rope_theta"}
            return JsonObject(config.path, bases, key)
        return rope
    return JsonObject(config.path, {}, "rope_parameters")


def _rotated_components(
    config: JsonObject, rope: JsonObject, head_dim: int, partial_rotary: bool
) -> int:
    holder = rope if "partial_rotary_factor" in rope.values else config
    factor = holder.number("partial_rotary_factor", 1.0)
    if factor != 1.0 and not partial_rotary:
        raise holder.error(
            "partial_rotary_factor", "must be 1.0: this architecture rotates whole heads"
        )
    dim = int(head_dim * factor)
    if not 0 < dim <= head_dim or dim % 2:
        raise ValueError(
            f"{config.path}: head_dim={head_dim} with partial_rotary_factor={factor} rotates {dim} "
            "components: must be an even number from 2 to head_dim"
        )
    return dim


def _factor(rope: JsonObject, default: float | None = None) -> float:
    """How many times longer texts become; where there is a default, null also stands for it."""
    factor = rope.number("factor") if default is None else rope.optional_number("factor") or default
    if factor < 1:
        raise rope.error("factor", "must be at least 1")
    return factor


# Each takes the rope object, the rotated components, and the model's and the original positions.


def _no_scaling(_rope: JsonObject, _dim: int, _max_position: int, _original: int) -> None:
    return None


def _linear(rope: JsonObject, _dim: int, _max_position: int, _original: int) -> LinearRopeScaling:
    return LinearRopeScaling(factor=_factor(rope))


def _dynamic(rope: JsonObject, dim: int, max_position: int, _original: int) -> DynamicRopeScaling:
    if dim == 2:  # the base grows by a power of dim / (dim - 2)
        raise rope.error("factor", "dynamic scaling needs heads that rotate more than 2 components")
    # The only type that leaves the trained length in max_position_embeddings.
    return DynamicRopeScaling(factor=_factor(rope), original_max_position=max_position)


def _llama3(rope: JsonObject, _dim: int, _max_position: int, original: int) -> Llama3RopeScaling:
    scaling = Llama3RopeScaling(
        factor=_factor(rope),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=original,
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise rope.error(
            "high_freq_factor", f"must be above low_freq_factor={scaling.low_freq_factor}"
        )
    return scaling


def _yarn(rope: JsonObject, _dim: int, max_position: int, original: int) -> YarnRopeScaling:
    factor = _factor(rope, max_position / original)
    mscale, mscale_all_dim = rope.nonzero_number("mscale"), rope.nonzero_number("mscale_all_dim")

    def temperature(
        mscale: float,
    ) -> float:  # equation 22 of the paper; DeepSeek scales its constant
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention_factor = rope.optional_number("attention_factor")
    if attention_factor is None and mscale is not None and mscale_all_dim is not None:
        attention_factor = temperature(mscale) / temperature(mscale_all_dim)
    return YarnRopeScaling(
        factor=factor,
        original_max_position=original,
        beta_fast=rope.optional_number("beta_fast") or 32.0,
        beta_slow=rope.optional_number("beta_slow") or 1.0,
        attention_factor=temperature(1.0) if attention_factor is None else attention_factor,
        truncate=rope.boolean("truncate", True),
    )


def _longrope(rope: JsonObject, dim: int, max_position: int, original: int) -> LongRopeScaling:
    factor = _factor(rope, max_position / original)
    attention_factor = rope.optional_number("attention_factor")
    if attention_factor is None:
        if original < 2:
            raise rope.error("original_max_position_embeddings", "must be at least 2")
        attention_factor = (
            math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        )
    return LongRopeScaling(
        short_factor=rope.numbers("short_factor", dim // 2),
        long_factor=rope.numbers("long_factor", dim // 2),
        original_max_position=original,
        attention_factor=attention_factor,
    )


def _proportional(
    rope: JsonObject, dim: int, _max_position: int, _original: int
) -> ProportionalRopeScaling:
    share = rope.number("partial_rotary_factor", 1.0)
    if share > 1:
        raise rope.error("partial_rotary_factor", "must be at most 1")
    return ProportionalRopeScaling(int(share * dim // 2), _factor(rope, 1.0))


_ScalingReader = Callable[[JsonObject, int, int, int], RopeScaling | None]

# Rope type: the keys that only it has, and its reader.
_SCALINGS: Mapping[str, tuple[set[str], _ScalingReader]] = {
    "default": (set(), _no_scaling),
    "mrope": (set(), _no_scaling),
    "linear": ({"factor"}, _linear),
    "dynamic": ({"factor"}, _dynamic),
    "llama3": (
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
        _llama3,
    ),
    "yarn": (
        {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"}
        | {"mscale", "mscale_all_dim", "truncate"},
        _yarn,
    ),
    "longrope": (
        {"factor", "original_max_position_embeddings", "attention_factor"}
        | {"short_factor", "long_factor"},
        _longrope,
    ),
    _PROPORTIONAL: ({"factor"}, _proportional),
}
