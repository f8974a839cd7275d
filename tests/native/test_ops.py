"""Each native op, compared with its definition, on every instruction set level of this machine.

Bounds are derived: a sum of n products is off by at most n + 1 roundings of the sum of their sizes.
"""

import ml_dtypes
import numpy as np
import pytest

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.native import kernel_levels
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.backends.row_table import MatrixRows
from pellucid.facts.model_config import (
    LongRopeScaling,
    ProportionalRopeScaling,
    RopeConfig,
    RopeGrowth,
)
from support.attention_cases import AttentionCase, dense_attention, paged_attention_in_steps
from support.batches import Share, forward_batch
from support.steps import chunks, whole

EPS = np.finfo(np.float32).eps
BF16_EPS = 2.0**-8
LEVELS = kernel_levels()
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
DEFINITION, EXACT = NumpyBackend(np.float32), NumpyBackend(np.float64)


@pytest.fixture(scope="module", params=LEVELS)
def backend(request):
    return CpuBackend(num_threads=2, isa=request.param, small_step_bytes=0)


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_close(actual, expected, error):
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    assert (np.abs(actual - expected) <= error).all()


def test_levels_end_with_the_portable_one():
    assert LEVELS[-1] == "portable"
    with pytest.raises(ValueError, match=r"isa='mmx': this machine runs .*portable"):
        CpuBackend(isa="mmx")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(("num_tokens", "num_rows", "num_columns"), [(1, 33, 40), (19, 64, 257)])
def test_linear_of_floats(backend, name, num_tokens, num_rows, num_columns):
    x, bias = normal(0, num_tokens, num_columns), normal(1, num_rows)
    weight = normal(2, num_rows, num_columns).astype(FLOATS[name])
    y = backend.ops.linear(x, backend.weights.matrix(weight, bias))
    if name == "bf16":
        x = x.astype(ml_dtypes.bfloat16)  # as the kernels do
    x, exact_weight = x.astype(np.float64), weight.astype(np.float64)
    sizes = np.abs(x) @ np.abs(exact_weight).T + np.abs(bias)
    assert_close(
        y, EXACT.ops.linear(x, EXACT.weights.matrix(weight, bias)), (num_columns + 1) * EPS * sizes
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("num_tokens", "num_columns"), [(1, 96), (7, 300), (21, 512)])
def test_linear_of_integers(backend, name, num_tokens, num_columns):
    x, bias = normal(0, num_tokens, num_columns), normal(1, 70)
    matrix = quantize_matrix(normal(2, 70, num_columns), FORMATS[name])
    y = backend.ops.linear(x, backend.weights.matrix(matrix, bias))
    sizes = np.abs(x).max(axis=1, keepdims=True) * np.abs(matrix.dequantize()).sum(axis=1) + 1
    # Products are exact; what both sides round are terms, their sum over groups, and its product with
    # the row's scale.
    num_roundings = 2 * (matrix.format.num_groups(num_columns) + 4)
    assert_close(
        y,
        DEFINITION.ops.linear(x, DEFINITION.weights.matrix(matrix, bias)),
        num_roundings * EPS * sizes,
    )


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", ["bf16", *FORMATS])
def test_linear_of_activations_as_they_are(isa, name):
    backend = CpuBackend(isa=isa, quantize_activations=False)
    x, weight = normal(0, 9, 200), normal(1, 40, 200)
    if name == "bf16":
        stored = weight.astype(ml_dtypes.bfloat16)
        weight = stored.astype(np.float64)
    else:
        stored = quantize_matrix(weight, FORMATS[name])
        weight = stored.dequantize().astype(np.float64)
    sizes = np.abs(x) @ np.abs(weight).T
    y = backend.ops.linear(x, backend.weights.matrix(stored))
    assert_close(y, x.astype(np.float64) @ weight.T, 202 * EPS * sizes)


@pytest.mark.parametrize("name", [*FLOATS, *FORMATS])
def test_embed_is_exact(backend, name):
    table, ids = normal(0, 50, 72), np.array([49, 0, 0, 33])
    table = table.astype(FLOATS[name]) if name in FLOATS else quantize_matrix(table, FORMATS[name])
    expected = DEFINITION.ops.embed(ids, DEFINITION.weights.matrix(table), 3.0)
    assert (backend.ops.embed(ids, backend.weights.matrix(table), 3.0) == expected).all()
    assert (3 * backend.ops.embed(ids, backend.weights.matrix(table)) == expected).all()
    with pytest.raises(IndexError, match="row 50 of an embedding of 50 rows"):
        backend.ops.embed(np.array([50]), backend.weights.matrix(table))


def test_rows_of_a_table_are_exact(backend):
    rows, ids = MatrixRows(normal(0, 50, 72).astype(ml_dtypes.bfloat16)), np.array([49, 0, 0, 33])
    expected = DEFINITION.ops.embed(ids, DEFINITION.weights.table(rows), 3.0)
    assert (backend.ops.embed(ids, backend.weights.table(rows), 3.0) == expected).all()


@pytest.mark.parametrize("num_factors", [257, 1])
def test_scale_is_exact(backend, num_factors):
    x, factors = normal(0, 5, 257), normal(1, num_factors)
    expected = DEFINITION.ops.scale(x, factors)
    assert (backend.ops.scale(x, backend.weights.vector(factors)) == expected).all()


def test_rms_norm_without_a_weight(backend):
    x, ones = 3 * normal(0, 4, 2, 16), backend.weights.vector(np.ones(16))
    assert (backend.ops.rms_norm(x, None, 1e-5) == backend.ops.rms_norm(x, ones, 1e-5)).all()


@pytest.mark.parametrize("shape", [(3, 1), (3, 7), (2, 3, 16), (4, 257)])
def test_norms(backend, shape):
    x, weight, bias = 3 * normal(0, *shape), normal(1, shape[-1]), normal(2, shape[-1])
    expected = EXACT.ops.rms_norm(x.astype(np.float64), weight, 1e-5)
    assert_close(
        backend.ops.rms_norm(x, backend.weights.vector(weight), 1e-5),
        expected,
        (shape[-1] + 6) * EPS * np.abs(expected),
    )
    expected = EXACT.ops.layer_norm(x.astype(np.float64), weight, bias, 1e-5)
    # The mean's rounding is relative to what it was summed from, not to what is left.
    spread = np.abs(x).max() / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    error = (shape[-1] + 8) * EPS * (np.abs(bias) + np.abs(weight) * (1 + spread))
    assert_close(
        backend.ops.layer_norm(
            x, backend.weights.vector(weight), backend.weights.vector(bias), 1e-5
        ),
        expected,
        error,
    )


ROPES = {
    "all": RopeConfig(theta=10000.0, dim=24),
    "part": RopeConfig(theta=500.0, dim=10),
    "proportional": RopeConfig(theta=1e6, dim=24, scaling=ProportionalRopeScaling(3, 2.0)),
    "growing": RopeConfig(theta=10000.0, dim=24, growth=RopeGrowth(0.5, 7)),
    "by length": RopeConfig(
        theta=10000.0,
        dim=8,
        scaling=LongRopeScaling((1.0, 1.5, 2.0, 2.5), (3.0, 4.0, 5.0, 6.0), 20, 1.2),
    ),
}


@pytest.mark.parametrize("name", ROPES)
def test_rope(backend, name):
    shares = [Share([0] * 40, 0, 40, range(3), 10), Share([0] * 9, 5, 9, range(1))]
    batch, x = forward_batch(shares, 16), normal(0, 44, 3, 24)
    expected = DEFINITION.ops.rope(x, batch, ROPES[name])
    sizes = np.abs(x).max(axis=-1, keepdims=True)
    assert_close(backend.ops.rope(x, batch, ROPES[name]), expected, 16 * EPS * sizes)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "clamped_swish"])
def test_activations(backend, activation):
    x = np.concatenate((np.linspace(-30, 30, 4001), [0.0, -0.0, 1e-30, -1e-30, 200.0, -200.0]))
    x = x.astype(np.float32)[None]
    expected = EXACT.ops.activate(x.astype(np.float64), activation)
    assert_close(backend.ops.activate(x, activation), expected, 6 * EPS * np.abs(x))
    assert np.isnan(backend.ops.activate(np.full((1, 3), np.nan, np.float32), activation)).all()
    up = normal(1, 1, x.shape[1])
    gated = backend.ops.gated_activate(np.concatenate((x, up), axis=1), activation)
    if activation == "clamped_swish":
        up = np.clip(up, -7, 7) + 1
    assert_close(gated, expected * up, 8 * EPS * np.abs(x * up))


def test_logits_with_a_softcap(backend):
    x, weight = normal(0, 5, 64), normal(1, 90, 64)
    handle = backend.weights.matrix(weight)
    plain = backend.ops.linear(x, handle).astype(np.float64)
    assert_close(
        backend.ops.logits(x, handle, 3.0), 3 * np.tanh(plain / 3), 6 * EPS * np.abs(plain)
    )
    assert (backend.ops.logits(x, handle) == plain).all()


@pytest.mark.parametrize("steps", ["whole", "chunks"])
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "options", [{}, {"sliding_window": 20}, {"softcap": 2.0}, {"sinks": normal(7, 6)}], ids=str
)
def test_attention(backend, kv_dtype, options, steps):
    length = 70
    case = AttentionCase.random(0, [length], 6, 2, 16)
    cut = whole([length]) if steps == "whole" else chunks(length, 23)
    y = paged_attention_in_steps(backend, case, cut, 32, kv_dtype, **options)[0]
    # What is stored and multiplied in bf16 is rounded once; products and sums are not worse than f32.
    unit = BF16_EPS if kv_dtype == "bf16" else 16 * EPS
    q, k, v = case.requests[0]
    expected = dense_attention(q, k, v, 0.35, **options)
    score_error = (
        2 * unit * 0.35 * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max()
    )
    assert_close(y, expected, (2 * score_error + 2 * unit) * np.abs(v).max())


@pytest.mark.parametrize("options", [{}, {"sliding_window": 20}, {"softcap": 3.0}], ids=str)
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("kv_dtype", ["int8", "int8,int4", "int4"])
def test_attention_over_codes(backend, kv_dtype, head_dim, options):
    """Kernels and definition read the same codes; kernels also round queries and probabilities."""
    case = AttentionCase.random(0, [70], 6, 2, head_dim)
    y, expected = (
        paged_attention_in_steps(backend, case, chunks(70, 23), 32, kv_dtype, **options)[0]
        for each in (backend, DEFINITION)
    )
    q, k, v = case.requests[0]
    # A query's components are off by half a step of amax / 127.
    query_error = np.sqrt(head_dim) * np.abs(q).max() / 254
    score_error = 0.35 * 1.1 * np.linalg.norm(k, axis=-1).max() * query_error
    # Of 16 probabilities times scales, each is off by half a step of the greatest one / 127, and
    # meets codes of up to 127, respectively 8 with scales that are larger by as much.
    code_error = 16 / 254
    assert_close(y, expected, (np.expm1(2 * score_error) + code_error) * 1.1 * np.abs(v).max())


@pytest.mark.parametrize("head_dim", [16, 40, 64])
@pytest.mark.parametrize("kv_dtype", ["int8", "int8,int4", "int4"])
def test_values_are_stored_as_the_definition_says(backend, kv_dtype, head_dim):
    """A sequence of one token gets its own value back: its probability is 1."""
    case = AttentionCase.random(0, [1], 6, 2, head_dim)
    y, expected = (
        paged_attention_in_steps(backend, case, whole([1]), 32, kv_dtype)[0]
        for each in (backend, DEFINITION)
    )
    assert_close(y, expected, 4 * EPS * np.abs(expected))


def test_elementwise_ops_are_the_same_on_every_level():
    """One source, IEEE operations, nothing fused: the level decides the speed alone."""
    x, weight = 3 * normal(0, 6, 150), normal(1, 150)
    batch = forward_batch([Share([0] * 6, 0, 6, range(1))], 16)

    def results(backend):
        yield backend.ops.rms_norm(x, weight, 1e-5)
        yield backend.ops.layer_norm(x, weight, weight, 1e-5)
        yield backend.ops.rope(x.reshape(6, 3, 50), batch, ROPES["all"])
        for activation in ("silu", "gelu", "gelu_tanh", "clamped_swish"):
            yield backend.ops.activate(x, activation)
            yield backend.ops.gated_activate(x, activation)

    of_levels = [list(results(CpuBackend(isa=isa))) for isa in LEVELS]
    for of_level in of_levels[1:]:
        for actual, first in zip(of_level, of_levels[0], strict=True):
            assert (actual == first).all()
