"""Known shapes: the published config.json of well-known models, without weights.

For `pellucid bench --shape`: how fast a model would be on this machine, before it is downloaded.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pellucid.config import (
    AttentionConfig,
    ExpertsConfig,
    LayerConfig,
    Llama3RopeScaling,
    MLPConfig,
    ModelConfig,
    RopeConfig,
)


def find_shape(name: str) -> ModelConfig:
    """The shape called `name`.

    Raises:
        ValueError: it is not known; the message lists those that are.
    """
    if name not in SHAPES:
        raise ValueError(f"shape={name!r}: known are {', '.join(SHAPES)}")
    return SHAPES[name]


def _llama_like(
    *,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rope_theta: float,
    intermediate_size: int | None = None,
    experts: ExpertsConfig | None = None,
    rope_scaling: Llama3RopeScaling | None = None,
    window: int | None = None,
    qkv_bias: bool = False,
    qk_norm: Literal["head", "width"] | None = None,
    **facts: Any,
) -> ModelConfig:
    """Llama's architecture, all layers the same, with an MLP or with experts; `facts` are the other fields
    of `ModelConfig`."""
    attention = AttentionConfig(
        num_heads,
        num_kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        rope=RopeConfig(rope_theta, head_dim, rope_scaling),
        window=window,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )
    mlp = None if intermediate_size is None else MLPConfig(intermediate_size, "silu")
    return ModelConfig(layers=(LayerConfig(attention, mlp, experts),) * num_layers, **facts)


def _qwen3_30b_a3b(num_layers: int) -> ModelConfig:
    return _llama_like(
        architecture="Qwen3MoeForCausalLM",
        vocab_size=151_936,
        hidden_size=2048,
        experts=ExpertsConfig(128, 8, 768, "silu"),
        num_layers=num_layers,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        max_position_embeddings=40_960,
        norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm="head",
        bos_token_id=151_643,
        eos_token_ids=(151_645,),
    )


SHAPES: Mapping[str, ModelConfig] = {
    "smollm2-135m": _llama_like(
        architecture="LlamaForCausalLM",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        norm_eps=1e-5,
        rope_theta=1e5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_ids=(0,),
    ),
    "qwen2.5-0.5b": _llama_like(
        architecture="Qwen2ForCausalLM",
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        max_position_embeddings=32_768,
        norm_eps=1e-6,
        rope_theta=1e6,
        qkv_bias=True,
        tie_word_embeddings=True,
        bos_token_id=151_643,
        eos_token_ids=(151_643,),
    ),
    "qwen3-0.6b": _llama_like(
        architecture="Qwen3ForCausalLM",
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm="head",
        tie_word_embeddings=True,
        bos_token_id=151_643,
        eos_token_ids=(151_645,),
    ),
    "llama-3.2-1b": _llama_like(
        architecture="LlamaForCausalLM",
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        norm_eps=1e-5,
        rope_theta=5e5,
        rope_scaling=Llama3RopeScaling(32.0, 1.0, 4.0, 8192),
        tie_word_embeddings=True,
        bos_token_id=128_000,
        eos_token_ids=(128_001,),
    ),
    "phi-3-mini": _llama_like(  # Phi-3-mini-4k-instruct
        architecture="Phi3ForCausalLM",
        vocab_size=32_064,
        hidden_size=3072,
        intermediate_size=8192,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        head_dim=96,
        max_position_embeddings=4096,
        norm_eps=1e-5,
        rope_theta=1e4,
        window=2047,
        bos_token_id=1,
        eos_token_ids=(32_000,),
    ),
    "mistral-7b": _llama_like(  # v0.3, which has no sliding window
        architecture="MistralForCausalLM",
        vocab_size=32_768,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
        norm_eps=1e-5,
        rope_theta=1e6,
        bos_token_id=1,
        eos_token_ids=(2,),
    ),
    "llama-3.1-8b": _llama_like(
        architecture="LlamaForCausalLM",
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=131_072,
        norm_eps=1e-5,
        rope_theta=5e5,
        rope_scaling=Llama3RopeScaling(8.0, 1.0, 4.0, 8192),
        bos_token_id=128_000,
        eos_token_ids=(128_001,),
    ),
    "olmoe-1b-7b": _llama_like(  # OLMoE-1B-7B-0924
        architecture="OlmoeForCausalLM",
        vocab_size=50_304,
        hidden_size=2048,
        experts=ExpertsConfig(64, 8, 1024, "silu", normalize=False),
        num_layers=16,
        num_heads=16,
        num_kv_heads=16,
        head_dim=128,
        max_position_embeddings=4096,
        norm_eps=1e-5,
        rope_theta=1e4,
        qk_norm="width",
        eos_token_ids=(50_279,),
    ),
    "qwen3-30b-a3b": _qwen3_30b_a3b(num_layers=48),
    "qwen3-30b-a3b-24-layers": _qwen3_30b_a3b(num_layers=24),  # of 48, for machines of 16 GB
}
