"""A model shape that every backend computes within milliseconds."""

from pellucid.facts.model_config import RopeConfig
from support.uniform_model import uniform_model

TINY_SHAPE = uniform_model(
    architecture="LlamaForCausalLM",
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=1024,
    norm_eps=1e-5,
    activation="silu",
    rope=RopeConfig(1e4, 8),
    scale=8**-0.5,
    windows=(None, 16),
)
