"""Row invariance of the NumPy ops: a row has the same bits alone, in any batch, in any chunks, at any block size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.numpy.ops import TILE
from pellucid.facts.model_config import DynamicRopeScaling, RopeConfig
from support.attention_cases import AttentionCase, paged_attention_in_steps
from support.batches import Share, forward_batch
from support.row_invariance import same_in_any_step
from support.steps import random_steps

OPS = {"f32": NumpyBackend(np.float32), "f64": NumpyBackend(np.float64)}
backends = st.sampled_from(list(OPS))
seeds = st.integers(0, 2**32 - 1)


# From 2 outputs on: for one, NumPy takes a matrix-vector product, and no model has such a weight.
@given(backends, seeds, st.integers(1, 70), st.integers(2, 90), st.integers(1, 90), st.booleans())
def test_linear(backend, seed, num_tokens, num_rows, num_columns, has_bias):
    backend, rng = OPS[backend], np.random.default_rng(seed)
    weight = rng.standard_normal((num_rows, num_columns))
    handle = backend.weights.matrix(weight, weight[:, 0] if has_bias else None)
    x = rng.standard_normal((num_tokens, num_columns)).astype(backend.ops.dtype)
    assert same_in_any_step(lambda rows: backend.ops.linear(rows, handle), x, rng)


@pytest.mark.parametrize("backend", OPS)
@pytest.mark.parametrize(
    ("num_rows", "num_columns"), [(512, 256), (256, 688), (4096, 256), (151, 1000), (300, 3000)]
)
def test_linear_at_the_shapes_of_models(backend, num_rows, num_columns):
    """No BLAS promises that a row's place in a product of fixed shape leaves its bits alone."""
    backend, rng = OPS[backend], np.random.default_rng(0)
    handle = backend.weights.matrix(rng.standard_normal((num_rows, num_columns)))
    row = rng.standard_normal((1, num_columns)).astype(backend.ops.dtype)
    alone = backend.ops.linear(row, handle)[0]
    for place in range(TILE):
        others = rng.standard_normal((TILE, num_columns)).astype(backend.ops.dtype)
        others[place] = row
        assert (backend.ops.linear(others, handle)[place] == alone).all()


ROW_OPS = {
    "rms_norm": lambda backend, x: backend.ops.rms_norm(
        x, np.full(x.shape[1], backend.ops.dtype(2)), 1e-5
    ),
    "layer_norm": lambda backend, x: backend.ops.layer_norm(
        x, *np.full((2, x.shape[1]), backend.ops.dtype(2)), 1e-5
    ),
    "silu": lambda backend, x: backend.ops.activate(x, "silu"),
    "gelu": lambda backend, x: backend.ops.activate(x, "gelu"),
    "gelu_tanh": lambda backend, x: backend.ops.activate(x, "gelu_tanh"),
    "gated": lambda backend, x: backend.ops.gated_activate(np.concatenate((x, x), axis=1), "silu"),
}


@pytest.mark.parametrize("name", ROW_OPS)
@given(backends, seeds, st.integers(1, 40), st.integers(1, 300), st.sampled_from("CF"))
def test_row_ops(name, backend, seed, num_tokens, size, order):
    backend, rng = OPS[backend], np.random.default_rng(seed)
    x = 4 * rng.standard_normal((num_tokens, size)).astype(backend.ops.dtype)

    def op(rows):
        return ROW_OPS[name](backend, rows if rows is x else np.array(rows, order=order))

    assert same_in_any_step(op, x, rng)


@given(backends, seeds, st.integers(1, 30), st.integers(1, 5), st.integers(1, 24))
def test_norm_of_heads_that_are_a_slice(backend, seed, num_tokens, num_heads, head_dim):
    backend, rng = OPS[backend], np.random.default_rng(seed)
    qkv = rng.standard_normal((num_tokens, num_heads + 3, head_dim)).astype(backend.ops.dtype)
    weight = backend.weights.vector(rng.standard_normal(head_dim))
    assert same_in_any_step(
        lambda rows: backend.ops.rms_norm(rows[:, 1 : num_heads + 1], weight, 1e-5), qkv, rng
    )


@given(backends, seeds, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.booleans())
def test_rope(backend, seed, lengths, is_dynamic):
    backend, rng = OPS[backend], np.random.default_rng(seed)
    scaling = DynamicRopeScaling(factor=4.0, original_max_position=16) if is_dynamic else None
    table = RopeConfig(theta=10000.0, dim=10, scaling=scaling)
    shares = [Share([0] * length, 0, length, range(3), length // 2) for length in lengths]
    whole_x = [rng.standard_normal((length, 3, 12)).astype(backend.ops.dtype) for length in lengths]
    together = backend.ops.rope(np.concatenate(whole_x), forward_batch(shares, 16), table)
    alone = []
    for share, x in zip(shares, whole_x, strict=True):
        cut = int(rng.integers(0, share.stop))
        for start, stop in ((0, cut), (cut, share.stop)):
            if start < stop:
                part = Share(share.token_ids, start, stop, share.block_ids, share.num_prompt_tokens)
                alone.append(backend.ops.rope(x[start:stop], forward_batch([part], 16), table))
    assert (np.concatenate(alone) == together).all()


@given(
    backend=backends,
    seed=seeds,
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 2), (5, 1), (3, 3), (1, 1)]),
    head_dim=st.sampled_from([1, 8, 20, 32]),
    sliding_window=st.sampled_from([None, 1, 5, 16, 40]),
    softcap=st.sampled_from([None, 2.0]),
    block_sizes=st.permutations([16, 32, 64, 128]),
    kv_dtype=st.sampled_from(["f32", "bf16"]),
)
def test_paged_attention(
    backend, seed, lengths, heads, head_dim, sliding_window, softcap, block_sizes, kv_dtype
):
    backend, rng = OPS[backend], np.random.default_rng(seed)
    case = AttentionCase.random(seed, lengths, *heads, head_dim, backend.ops.dtype)
    options = {"kv_dtype": kv_dtype, "sliding_window": sliding_window, "softcap": softcap}
    alone_and_whole = [
        paged_attention_in_steps(
            backend, AttentionCase((request,)), [[(0, 0, length)]], block_sizes[0], **options
        )[0]
        for request, length in zip(case.requests, lengths, strict=True)
    ]
    mixed = paged_attention_in_steps(
        backend, case, random_steps(lengths, rng), block_sizes[1], **options
    )
    for one, other in zip(alone_and_whole, mixed, strict=True):
        assert (one == other).all()
