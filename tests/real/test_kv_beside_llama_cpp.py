"""Quantized KV caches beside llama.cpp's on the same files and text: nats of KL from transformers in f32.

Both round activations, and llama.cpp rotates what it quantizes. Bits of a number: Q8_0 has 8.5, Q4_0 4.5 and Q4_1 5
(ours: docs/kv-cache.md).
"""

import pytest

from support.real_models import (
    FILES,
    divergence,
    log_probs,
    log_probs_of_llama,
    prose_token_ids,
    real_model,
    same_top,
    their_log_probs_of_prose,
)

OURS = ("bf16", "int8", "int8,int4", "int4")
LLAMA_CPPS = ("F16", "Q8_0", "Q4_1", "Q4_0")


@pytest.mark.parametrize("name", FILES)
def test_beside_llama_cpps_caches(name: str) -> None:
    expected, token_ids = their_log_probs_of_prose(name), prose_token_ids(name)
    found = {each: log_probs(real_model(name), token_ids, each) for each in OURS}
    found |= {each: log_probs_of_llama(name, [token_ids], each)[0] for each in LLAMA_CPPS}
    moved = {each: divergence(expected, own) for each, own in found.items()}
    for each, own in found.items():
        print(f"{name} {each}: KL {moved[each]:.5f}, same top {same_top(expected, own):.1%}")
    assert moved["int4"] < moved["bf16"] + 0.014
    assert moved["int4"] < moved["Q4_1"] / 3
    assert moved["int8,int4"] < moved["Q4_1"] / 3
    # Activations are rounded in both: what the codes add to a cache of 16 bits is within the noise of that, 0.001.
    assert moved["int8"] < moved["bf16"] + max(0.0, moved["Q8_0"] - moved["F16"]) + 0.001
