"""Native routers and experts: close to their definition, and a row has the same bits in any step, on any
level and number of threads."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.native import kernel_levels
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from support.batches import Share, forward_batch
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.expert_cases import random_choice, random_experts
from support.row_invariance import same_in_any_step

LEVELS = kernel_levels()
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
DEFINITION = NumpyBackend(np.float32)
ROUTERS = ("softmax", "softmax_chosen", "sigmoid")
BACKENDS = {
    (isa, threads): CpuBackend(threads, isa, small_step_bytes=0)
    for isa in LEVELS
    for threads in (1, 2, 3)
}
seeds = st.integers(0, 2**32 - 1)


def store(name):
    """Makes floats a matrix of the format `name`."""
    if name in FORMATS:
        return lambda weight: quantize_matrix(weight.astype(np.float32), FORMATS[name])
    return lambda weight: weight.astype(FLOATS[name])


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(1, 1), (7, 3), (64, 8), (128, 128)])
def test_route(isa, router, num_experts, num_chosen):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20, num_experts)).astype(np.float32)
    logits[3] = 1  # equal ones
    logits[5, -1], logits[6, 0], logits[7, num_experts // 2] = np.nan, np.inf, -np.inf
    bias = rng.normal(size=num_experts).astype(np.float32) if router == "sigmoid" else None
    for normalize in (False, True):
        arguments = (logits, num_chosen, router, normalize, 2.5, bias)
        actual = BACKENDS[isa, 2].ops.route(*arguments)
        expected = DEFINITION.ops.route(*arguments)
        assert ((actual != 0) == (expected != 0)).all()
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=0)
    plain = BACKENDS[isa, 2].ops.route(logits, num_chosen, router)
    assert (
        plain.tobytes()
        == BACKENDS[isa, 2].ops.route(logits, num_chosen, router, False, 1.0).tobytes()
    )


# 300 tokens: beyond what all threads share.
@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", [*FLOATS, *FORMATS])
@pytest.mark.parametrize("num_tokens", [1, 5, 300])
def test_experts(isa, name, num_tokens):
    rng = np.random.default_rng(0)
    case = random_experts(rng, 6, 40, 72, store(name), has_bias=True)
    x = rng.normal(size=(num_tokens, 72)).astype(np.float32)
    weights = random_choice(rng, num_tokens, 6, 3)
    # A weight in bf16 meets rows in bf16; else both sides round rows alike, up to ties.
    tolerance = 2e-2 if name == "bf16" or name in FORMATS else 2e-5
    actual, expected = (
        backend.ops.expert_mlp(x, weights, 3, *case.handles(backend), "gelu_tanh")
        for backend in (BACKENDS[isa, 3], DEFINITION)
    )
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


def test_matrices_of_two_formats():
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(9, 64)).astype(np.float32), random_choice(rng, 9, 4, 2)
    case = random_experts(rng, 4, 64, 64, store("int8"))
    case = replace(case, up=[matrix.dequantize() for matrix in case.up])
    actual, expected = (
        backend.ops.expert_mlp(x, weights, 2, *case.handles(backend), "silu")
        for backend in (BACKENDS[LEVELS[0], 2], DEFINITION)
    )
    assert np.abs(actual - expected).max() <= 2e-2 * np.abs(expected).max()


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", ["f32", "bf16", "int8", "int4", "int4-g128-zp"])
@given(seeds, st.sampled_from([3, 40, 200]), st.integers(2, 9), st.integers(1, 90))
@settings(max_examples=4)
def test_a_row_has_the_same_bits_in_any_step(isa, name, seed, num_tokens, num_experts, width):
    rng = np.random.default_rng(seed)
    hidden, num_chosen = 48, int(rng.integers(1, num_experts + 1))
    case = random_experts(rng, num_experts, width, hidden, store(name), has_bias=True)
    router = rng.normal(size=(num_experts, hidden)).astype(np.float32)
    x = rng.normal(size=(num_tokens, hidden)).astype(np.float32)

    def layer(backend):
        handle = backend.weights.matrix(router, rounds_activations=False)
        experts = case.handles(backend)

        def on(rows):
            logits = backend.ops.linear(rows, handle)
            weights = backend.ops.route(logits, num_chosen, "softmax", normalize=True)
            return backend.ops.expert_mlp(rows, weights, num_chosen, *experts, "silu")

        return on

    expected = layer(BACKENDS[isa, 1])(x)
    for threads in (2, 3):
        assert (layer(BACKENDS[isa, threads])(x) == expected).all()
    assert same_in_any_step(layer(BACKENDS[isa, 2]), x, rng)


def test_a_nan_in_one_row_leaves_the_others_alone():
    rng, backend = np.random.default_rng(0), BACKENDS[LEVELS[0], 2]
    experts = random_experts(rng, 4, 16, 16, store("int4")).handles(backend)
    x = rng.normal(size=(5, 16)).astype(np.float32)
    logits = rng.normal(size=(5, 4)).astype(np.float32)

    def layer(logits):
        weights = backend.ops.route(logits, 2, "softmax")
        return backend.ops.expert_mlp(x, weights, 2, *experts, "silu")

    expected = layer(logits)
    logits[3, 1] = np.nan
    actual = layer(logits)
    assert np.isnan(actual[3]).all()
    assert (np.delete(actual, 3, axis=0) == np.delete(expected, 3, axis=0)).all()


def test_operands_that_do_not_fit():
    rng, backend = np.random.default_rng(0), BACKENDS[LEVELS[0], 1]
    x, weights = rng.normal(size=(2, 16)).astype(np.float32), random_choice(rng, 2, 3, 2)
    gate, up, down = random_experts(rng, 3, 8, 16, store("f32")).handles(backend)
    other = random_experts(rng, 3, 8, 16, store("bf16")).handles(backend)
    with pytest.raises(ValueError, match="up: has 2 matrices for 3 experts"):
        backend.ops.expert_mlp(x, weights, 2, gate, up[:2], down, "silu")
    with pytest.raises(
        ValueError, match=r"down: must be \[16, 8\] for each expert, one is \[8, 16\]"
    ):
        backend.ops.expert_mlp(x, weights, 2, gate, up, up, "silu")
    with pytest.raises(ValueError, match="gate: must have one format for all experts"):
        backend.ops.expert_mlp(x, weights, 2, (*gate[:2], other[0][2]), up, down, "silu")
    with pytest.raises(ValueError, match="num_chosen=4: allowed are 1 to 3"):
        backend.ops.route(weights, 4, "softmax")
    with pytest.raises(
        ValueError, match="router='tanh': allowed are softmax, softmax_chosen, sigmoid"
    ):
        backend.ops.route(weights, 2, "tanh")


def test_a_step_counts_the_bytes_of_the_experts_that_it_read(tmp_path):
    backend = CpuBackend()
    decoder, config = load_decoder(write_checkpoint(tmp_path, "olmoe"), backend)
    compiled = backend.compile(decoder, config)
    kv_cache = backend.make_kv_cache(config, 4, 16, "f32")
    all_experts = compiled.step_weights.expert_bytes
    one_expert = 4 * 3 * config.hidden_size * 32  # f32, three matrices
    assert all_experts == config.num_layers * 7 * one_expert
    token = forward_batch([Share([5], 0, 1, [0])], 16)
    assert compiled.step(token, kv_cache).expert_bytes == config.num_layers * 3 * one_expert
    prompt = forward_batch([Share(list(range(60)), 0, 60, range(4))], 16)
    num_bytes = compiled.step(prompt, kv_cache).expert_bytes
    assert config.num_layers * 3 * one_expert < num_bytes <= all_experts
    assert num_bytes % one_expert == 0
