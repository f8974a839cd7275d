"""Row invariance of the native kernels: a row has the same bits in any step, on any level and number of threads."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.native import kernel_levels
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.model_config import DynamicRopeScaling, RopeConfig
from support.attention_cases import AttentionCase, paged_attention_in_steps
from support.batches import Share, forward_batch
from support.row_invariance import same_in_any_step
from support.steps import random_steps, whole

LEVELS = kernel_levels()
WEIGHTS = ("f32", "f16", "bf16", *FORMATS)
EXAMPLES = settings(max_examples=6)
seeds = st.integers(0, 2**32 - 1)
BACKENDS = {
    (isa, threads): CpuBackend(threads, isa, max_rows=1024, small_step_bytes=0)
    for isa in LEVELS
    for threads in (1, 2, 3)
}


def stored(weight, name):
    if name in FORMATS:
        return quantize_matrix(weight, FORMATS[name])
    return weight.astype({"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[name])


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", WEIGHTS)
@given(seeds, st.integers(1, 70), st.integers(1, 100), st.integers(1, 300))
@EXAMPLES
def test_linear(isa, name, seed, num_tokens, num_rows, num_columns):
    rng = np.random.default_rng(seed)
    weight = stored(rng.standard_normal((num_rows, num_columns)), name)
    bias = rng.standard_normal(num_rows)
    x = rng.standard_normal((num_tokens, num_columns)).astype(np.float32)
    backend = BACKENDS[isa, 2]
    handle = backend.weights.matrix(weight, bias)
    assert same_in_any_step(lambda rows: backend.ops.linear(rows, handle), x, rng)
    for threads in (1, 3):
        assert (BACKENDS[isa, threads].ops.linear(x, handle) == backend.ops.linear(x, handle)).all()


ROW_OPS = {
    "rms_norm": lambda backend, x: backend.ops.rms_norm(
        x, np.full(x.shape[1], np.float32(2)), 1e-5
    ),
    "layer_norm": lambda backend, x: backend.ops.layer_norm(
        x, *np.full((2, x.shape[1]), np.float32(2)), 1e-5
    ),
    "silu": lambda backend, x: backend.ops.activate(x, "silu"),
    "gelu": lambda backend, x: backend.ops.activate(x, "gelu"),
    "gelu_tanh": lambda backend, x: backend.ops.activate(x, "gelu_tanh"),
    "gated": lambda backend, x: backend.ops.gated_activate(np.concatenate((x, x), axis=1), "silu"),
}


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", ROW_OPS)
@given(seeds, st.integers(1, 40), st.integers(1, 300))
@EXAMPLES
def test_row_ops(isa, name, seed, num_tokens, size):
    backend, rng = BACKENDS[isa, 3], np.random.default_rng(seed)
    x = 4 * rng.standard_normal((num_tokens, size)).astype(np.float32)
    assert same_in_any_step(lambda rows: ROW_OPS[name](backend, rows), x, rng)


@pytest.mark.parametrize("isa", LEVELS)
@given(seeds, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.booleans())
@EXAMPLES
def test_rope(isa, seed, lengths, is_dynamic):
    backend, rng = BACKENDS[isa, 2], np.random.default_rng(seed)
    scaling = DynamicRopeScaling(factor=4.0, original_max_position=16) if is_dynamic else None
    table = RopeConfig(theta=10000.0, dim=10, scaling=scaling)
    shares = [Share([0] * length, 0, length, range(3), length // 2) for length in lengths]
    x = [rng.standard_normal((length, 3, 12)).astype(np.float32) for length in lengths]
    together = backend.ops.rope(np.concatenate(x), forward_batch(shares, 16), table)
    alone = [
        backend.ops.rope(own, forward_batch([share], 16), table)
        for share, own in zip(shares, x, strict=True)
    ]
    assert (np.concatenate(alone) == together).all()


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8", "int8,int4", "int4"])
@given(
    seed=seeds,
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 2), (7, 1)]),
    head_dim=st.sampled_from([8, 24, 64]),
    sliding_window=st.sampled_from([None, 1, 16, 40]),
    softcap=st.sampled_from([None, 2.0]),
    has_sinks=st.booleans(),
    block_sizes=st.permutations([16, 32, 64, 128]),
)
@EXAMPLES
def test_paged_attention(
    isa, kv_dtype, seed, lengths, heads, head_dim, sliding_window, softcap, has_sinks, block_sizes
):
    rng = np.random.default_rng(seed)
    sizes = [max(size, find_kv_format(kv_dtype).open_positions) for size in block_sizes]
    case = AttentionCase.random(seed, lengths, *heads, head_dim)
    sinks = rng.standard_normal(heads[0]).astype(np.float32) if has_sinks else None
    options = {
        "kv_dtype": kv_dtype,
        "sliding_window": sliding_window,
        "softcap": softcap,
        "sinks": sinks,
    }
    alone = [
        paged_attention_in_steps(
            BACKENDS[isa, 1], AttentionCase((request,)), whole([length]), sizes[0], **options
        )[0]
        for request, length in zip(case.requests, lengths, strict=True)
    ]
    steps = random_steps(lengths, rng)
    mixed = paged_attention_in_steps(BACKENDS[isa, 3], case, steps, sizes[1], **options)
    for one, other in zip(alone, mixed, strict=True):
        assert (one == other).all()
