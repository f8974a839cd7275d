"""The facts of a model whose layers are all the same, but for their windows."""

from collections.abc import Sequence
from typing import Any

from pellucid.facts.model_config import (
    Activation,
    AttentionConfig,
    LayerConfig,
    MLPConfig,
    ModelConfig,
    RopeConfig,
)


def uniform_model(
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    intermediate_size: int,
    activation: Activation,
    rope: RopeConfig | None,
    scale: float,
    windows: Sequence[int | None],
    attention: dict[str, Any] | None = None,
    mlp: dict[str, Any] | None = None,
    **facts: Any,
) -> ModelConfig:
    """A model with a layer for each of `windows`.

    Args:
        attention: further fields of `AttentionConfig`.
        mlp: further fields of `MLPConfig`.
        facts: the other fields of `ModelConfig`.
    """
    layers = tuple(
        LayerConfig(
            AttentionConfig(
                num_heads, num_kv_heads, head_dim, scale, rope, window, **(attention or {})
            ),
            MLPConfig(intermediate_size, activation, **(mlp or {})),
        )
        for window in windows
    )
    return ModelConfig(layers=layers, **facts)
