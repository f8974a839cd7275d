"""The prefix fingerprint: a hash of everything besides the tokens that determines a block's keys and values."""

import hashlib

from pellucid import __version__
from pellucid.backends.base import Backend
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig


def prefix_fingerprint(
    config: EngineConfig, model_config: ModelConfig, weights: bytes, backend: Backend
) -> bytes:
    """32 bytes that differ if any bit of a block could differ for the same tokens, or if its layout differs.

    Args:
        config: formats of weights, activations and cache, and the block size matter.
        model_config: all of it matters.
        weights: `loading.checksums.weights_identity`.
        backend: the backend, whose arithmetic and instruction set matter.
    """
    facts = (
        __version__,
        backend.identity,
        config.quantization,
        config.quantize_activations,
        config.kv_cache_dtype,
        config.block_size,
        model_config,
        weights,
    )
    return hashlib.sha256(repr(facts).encode()).digest()
