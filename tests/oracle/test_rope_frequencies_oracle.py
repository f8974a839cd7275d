"""Rotary frequencies, compared live with transformers' functions, at the sizes of real models."""

import numpy as np
import pytest

from pellucid.backends.rope_frequencies import rope_frequencies
from pellucid.facts.model_config import (
    DynamicRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    LongRopeScaling,
    RopeConfig,
    YarnRopeScaling,
)

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DIM = 64
SHORT, LONG = (tuple(np.linspace(1, last, DIM // 2).tolist()) for last in (2.0, 60.0))
# name: (theta, our scaling, transformers' rope parameters, max_position_embeddings)
CASES = {
    "linear": (1e4, LinearRopeScaling(4.0), {"factor": 4.0}, 4096),
    "dynamic": (1e4, DynamicRopeScaling(4.0, 2048), {"factor": 4.0}, 2048),
    "llama3": (
        5e5,
        Llama3RopeScaling(32.0, 1.0, 4.0, 8192),
        {
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        131072,
    ),
    "yarn": (
        1e6,
        YarnRopeScaling(4.0, 32768, 32.0, 1.0, 1.1, truncate=True),
        {"factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.1},
        131072,
    ),
    "yarn-untruncated": (
        15e4,
        YarnRopeScaling(32.0, 4096, 32.0, 1.0, 1.3, truncate=False),
        {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "attention_factor": 1.3,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        131072,
    ),
    "longrope": (
        1e4,
        LongRopeScaling(SHORT, LONG, 4096, 1.19),
        {
            "short_factor": SHORT,
            "long_factor": LONG,
            "attention_factor": 1.19,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
        },
        131072,
    ),
}


@pytest.mark.parametrize("length", [1, 2048, 2049, 4096, 4097, 100_000])
@pytest.mark.parametrize("name", CASES)
def test_frequencies(name, length):
    theta, scaling, their_parameters, max_position = CASES[name]
    config = transformers.LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=max_position,
        rope_parameters={"rope_type": name, "rope_theta": theta} | their_parameters,
    )
    rope_type = config.rope_parameters["rope_type"]
    compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rope_type]
    their_inv_freq, their_factor = compute(config, "cpu", seq_len=length)
    inv_freq, factor = rope_frequencies(RopeConfig(theta, DIM, scaling), length)
    assert factor == their_factor
    # Theirs is f32: a power, and a few roundings around it.
    np.testing.assert_allclose(inv_freq, their_inv_freq.numpy(), rtol=8 * np.finfo(np.float32).eps)
