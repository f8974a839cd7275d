"""A shape that every backend runs in no time."""

from pellucid.config import ModelConfig, RopeConfig

TINY_SHAPE = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=1024,
    norm_eps=1e-5,
    activation="silu",
    rope=RopeConfig(1e4, 8),
    attention_scale=8**-0.5,
    sliding_windows=(None, 16),
)
