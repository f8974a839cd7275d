"""Each op of the NumPy backend against a direct formulation in f64, within a derived tolerance."""

import math
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from pellucid.backends.base import StepWeights
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.backends.row_table import MatrixRows
from pellucid.facts.kv_groups import open_key_bytes
from pellucid.facts.model_config import RopeConfig, RopeGrowth
from support.attention_cases import AttentionCase, dense_attention, paged_attention_in_steps
from support.batches import Share, forward_batch
from support.tiny_shape import TINY_SHAPE

DTYPES = (np.float32, np.float64)


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture(params=DTYPES, ids=["f32", "f64"])
def backend(request):
    return NumpyBackend(request.param)


@pytest.fixture
def ops(backend):
    return backend.ops


@pytest.fixture
def draw(ops):
    """Normal numbers of the type in which it computes."""
    return partial(normal, dtype=ops.dtype)


def test_the_identity_says_what_computes(monkeypatch):
    libraries = [
        {"user_api": "openmp", "internal_api": "openmp", "version": None},
        {"user_api": "blas", "internal_api": "openblas", "version": "1", "architecture": "Zen"},
        {"user_api": "blas", "internal_api": "mkl", "version": "2"},
    ]
    monkeypatch.setattr("pellucid.backends.numpy.backend.threadpool_info", lambda: libraries)
    for dtype, name in zip(DTYPES, ("float32", "float64"), strict=True):
        expected = f"numpy {np.__version__} {name} [('mkl', '2', None), ('openblas', '1', 'Zen')]"
        assert NumpyBackend(dtype).identity == expected


def eps(backend):
    return np.finfo(backend.ops.dtype).eps


def assert_close(actual, expected, error):
    """Elementwise |actual - expected| <= error, the bound on rounding that the test derived."""
    assert actual.shape == expected.shape
    assert (np.abs(actual - expected) <= error).all()


@pytest.mark.parametrize(("num_rows", "num_columns"), [(1, 1), (5, 7), (13, 64), (130, 33)])
@pytest.mark.parametrize("num_tokens", [0, 1, 16, 40])
def test_linear(backend, ops, draw, num_tokens, num_rows, num_columns):
    x = draw(0, num_tokens, num_columns)
    weight, bias = draw(1, num_rows, num_columns), draw(2, num_rows)
    y = ops.linear(x, backend.weights.matrix(weight, bias))
    assert y.dtype == ops.dtype
    x, weight, bias = (array.astype(np.longdouble) for array in (x, weight, bias))
    sizes = np.abs(x) @ np.abs(weight).T + np.abs(bias)
    assert_close(y, x @ weight.T + bias, (num_columns + 1) * eps(backend) * sizes)


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16])
def test_half_weights_are_converted_without_loss(backend, ops, stored):
    weight = normal(0, 9, 9).astype(stored)
    handle = backend.weights.matrix(weight, weight[0])
    rows = ops.embed(np.arange(9), handle)
    assert rows.dtype == ops.dtype
    assert (rows == weight.astype(np.float64)).all()
    assert (ops.linear(np.zeros((1, 9), ops.dtype), handle) == weight[0].astype(np.float64)).all()
    assert (backend.weights.vector(weight[1]) == weight[1].astype(np.float64)).all()


@pytest.mark.parametrize("stored", [np.float32, ml_dtypes.bfloat16, "int4"])
def test_embed_reads_rows_of_a_table(backend, ops, stored):
    matrix = normal(0, 11, 64)
    matrix = quantize_matrix(matrix, FORMATS[stored]) if stored == "int4" else matrix.astype(stored)
    ids = np.array([3, 3, 10, 0])
    floats = matrix.dequantize() if stored == "int4" else matrix.astype(ops.dtype)
    expected = floats.astype(ops.dtype)[ids] * ops.dtype(math.sqrt(5))
    table = backend.weights.table(MatrixRows(matrix))
    rows = ops.embed(ids, table, math.sqrt(5))
    assert rows.dtype == ops.dtype
    assert (rows == expected).all()
    with pytest.raises(IndexError):
        ops.embed(np.array([11]), table)


def test_scale_multiplies_columns(backend, ops, draw):
    x, factors = draw(0, 5, 7), draw(1, 7)
    scaled = ops.scale(x, backend.weights.vector(factors))
    assert (scaled == np.stack([row * factors for row in x])).all()
    by_one = ops.scale(x, backend.weights.vector(factors[:1]))
    assert (by_one == x * factors[0]).all()


@pytest.mark.parametrize("shape", [(3, 1), (3, 7), (2, 3, 16), (4, 257)])
def test_rms_norm(backend, ops, draw, shape):
    x, weight = 3 * draw(0, *shape), draw(1, shape[-1])
    exact = x.astype(np.longdouble)
    expected = exact / np.sqrt((exact**2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    error = (shape[-1] + 5) * eps(backend) * np.abs(expected)
    assert_close(ops.rms_norm(x, backend.weights.vector(weight), 1e-5), expected, error)


@pytest.mark.parametrize("shape", [(3, 7), (4, 257)])
def test_layer_norm(backend, ops, draw, shape):
    size = shape[-1]
    x = 3 * draw(0, *shape) + 1
    weight, bias = draw(1, size), draw(2, size)
    exact = x.astype(np.longdouble)
    mean, deviation = exact.mean(axis=-1, keepdims=True), exact.std(axis=-1, keepdims=True)
    expected = (exact - mean) / np.sqrt(deviation**2 + 1e-5) * weight + bias
    # Centering cancels: its error is that of the mean, of the size of x itself.
    largest = np.abs(exact).max(axis=-1, keepdims=True)
    error = 4 * size * eps(backend) * (largest / deviation * np.abs(weight) + np.abs(expected))
    assert_close(
        ops.layer_norm(x, backend.weights.vector(weight), backend.weights.vector(bias), 1e-5),
        expected,
        error,
    )


EXACT_ACTIVATIONS = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "clamped_swish": lambda x: min(x, 7) / (1 + math.exp(-1.702 * min(x, 7))),
}


@pytest.mark.parametrize("activation", EXACT_ACTIVATIONS)
def test_activate(backend, ops, activation):
    x = np.linspace(-6, 6, 243).reshape(3, -1).astype(ops.dtype)
    expected = np.vectorize(EXACT_ACTIVATIONS[activation])(x.astype(np.float64))
    assert ops.activate(x, activation).dtype == ops.dtype
    assert_close(ops.activate(x, activation), expected, 8 * eps(backend) * np.maximum(np.abs(x), 1))


@pytest.mark.parametrize("activation", EXACT_ACTIVATIONS)
def test_activations_of_large_numbers_are_zero_or_the_number(ops, activation):
    large = np.array([[-1e4, 1e4]], ops.dtype)
    expected = 7 / (1 + np.exp(-1.702 * 7)) if activation == "clamped_swish" else 1e4
    np.testing.assert_allclose(ops.activate(large, activation), [[0, expected]], rtol=1e-6)


def test_gated_activate_gates_the_second_half_by_the_first(ops, draw):
    gate_up = draw(0, 5, 14)
    expected = ops.activate(gate_up[:, :7], "silu") * gate_up[:, 7:]
    assert (ops.gated_activate(gate_up, "silu") == expected).all()
    up = np.clip(10 * gate_up[:, 7:], -7, 7) + 1
    expected = ops.activate(10 * gate_up[:, :7], "clamped_swish") * up
    assert (ops.gated_activate(10 * gate_up, "clamped_swish") == expected).all()


def test_rope_grows_with_the_logarithm_of_the_period(backend, ops, draw):
    batch = forward_batch([Share([0] * 30, 5, 30, range(2))], 16)
    x = draw(0, 25, 3, 16)
    plain = ops.rope(x, batch, RopeConfig(theta=10000.0, dim=16))
    growing = RopeConfig(theta=10000.0, dim=16, growth=RopeGrowth(0.3, 10))
    growth = 1 + 0.3 * np.log(1 + batch.positions // 10)
    expected = plain.astype(np.float64) * growth[:, None, None]
    assert_close(ops.rope(x, batch, growing), expected, 8 * eps(backend) * np.abs(x).max())
    assert np.unique(growth).tolist() == [1, 1 + 0.3 * np.log(2), 1 + 0.3 * np.log(3)]


@pytest.mark.parametrize("rotated", [16, 12, 2])
def test_rope_turns_pairs_as_complex_numbers(backend, ops, draw, rotated):
    num_tokens, first = 9, 1000
    x = draw(0, num_tokens, 3, 16)
    rope = RopeConfig(theta=10000.0, dim=rotated)
    batch = forward_batch(
        [Share([0] * (first + num_tokens), first, first + num_tokens, range(64))], 16
    )
    pairs = x[..., : rotated // 2] + 1j * x[..., rotated // 2 : rotated].astype(np.float64)
    inv_freq = 10000.0 ** (-2 * np.arange(rotated // 2) / rotated)
    turned = pairs * np.exp(1j * batch.positions[:, None] * inv_freq)[:, None]
    expected = np.concatenate((turned.real, turned.imag, x[..., rotated:]), axis=-1)
    # The angle is rounded twice, relative to itself; then two products and a sum.
    error = (2 * batch.positions[:, None, None] + 4) * eps(backend) * np.abs(x).max()
    actual = ops.rope(x, batch, rope)
    assert_close(actual, expected, error)
    assert (actual[..., rotated:] == x[..., rotated:]).all()


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "sliding_window"),
    [(4, 4, None), (4, 2, 1), (6, 2, 7), (5, 1, 16), (3, 3, 33), (6, 2, None)],
)
@pytest.mark.parametrize(("softcap", "has_sinks"), [(None, False), (1.5, True)])
def test_paged_attention(
    backend, ops, draw, num_heads, num_kv_heads, sliding_window, softcap, has_sinks
):
    case = AttentionCase.random(5, (1, 50, 17), num_heads, num_kv_heads, 8, ops.dtype)
    steps = [[(0, 0, 1), (1, 0, 20)], [(2, 0, 17)], [(1, 20, 50)]]
    scale = 0.4
    sinks = draw(6, num_heads) if has_sinks else None
    outputs = paged_attention_in_steps(
        backend,
        case,
        steps,
        block_size=16,
        scale=scale,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=sinks,
    )
    for (q, k, v), actual in zip(case.requests, outputs, strict=True):
        expected = dense_attention(q, k, v, scale, sliding_window, softcap, sinks)
        # Scores are off by rounding of a sum of D products, so weights are by twice that, relatively.
        score_error = (8 + 4) * scale * np.abs(q).max() * np.abs(k).max() * 8 + 4 * (softcap or 0)
        error = (2 * score_error + 2 * len(k) + 4) * eps(backend) * np.abs(v).max()
        assert_close(actual, expected, error)


def test_what_a_block_held_before_is_never_read(backend, ops, draw):
    config = tiny_config(num_layers=1)
    layer = backend.make_kv_cache(config, 4, 16, "f32").layers[0]
    q, k, v = (draw(seed, 5, heads, 8) for seed, heads in enumerate((4, 2, 2)))
    batch = forward_batch([Share([0] * 5, 0, 5, [2])], 16)
    ops.store_kv(layer, k, v, batch)
    clean = ops.paged_attention(q, layer, batch, 1.0)
    untouched = np.setdiff1d(np.arange(64), batch.slot_mapping)
    not_a_number = np.full((len(untouched), 2, 8), np.nan, ops.dtype)
    elsewhere = replace(batch, slot_mapping=untouched[None])
    ops.store_kv(layer, not_a_number, not_a_number, elsewhere)
    assert (ops.paged_attention(q, layer, batch, 1.0) == clean).all()


def test_bf16_cache_rounds_what_it_stores(backend, ops):
    case = AttentionCase.random(1, (30,), 4, 2, 8, ops.dtype)
    rounded = AttentionCase(
        tuple(
            (
                q,
                k.astype(ml_dtypes.bfloat16).astype(k.dtype),
                v.astype(ml_dtypes.bfloat16).astype(v.dtype),
            )
            for q, k, v in case.requests
        )
    )
    steps = [[(0, 0, 30)]]
    stored = paged_attention_in_steps(backend, case, steps, block_size=16, kv_dtype="bf16")
    expected = paged_attention_in_steps(backend, rounded, steps, block_size=16, kv_dtype="f32")
    assert (stored[0] == expected[0]).all()


def test_logits_are_capped(backend, ops, draw):
    x, weight = 9 * draw(0, 3, 8), draw(1, 5, 8)
    plain = ops.logits(x, backend.weights.matrix(weight))
    assert (plain == ops.linear(x, backend.weights.matrix(weight))).all()
    assert_close(
        ops.logits(x, backend.weights.matrix(weight), 2.0),
        2 * np.tanh(plain / 2),
        8 * eps(backend),
    )


def tiny_config(num_layers=3):
    return replace(TINY_SHAPE, layers=TINY_SHAPE.layers[:1] * num_layers)


@pytest.mark.parametrize(
    ("compute", "kv_dtype", "number_bytes"),
    [
        (np.float32, "f32", 4),
        (np.float64, "f32", 8),
        (np.float32, "bf16", 2),
        (np.float64, "bf16", 2),
        (np.float32, "int8", (32 + 2 + 8 + 2) / (2 * 8)),  # rotated groups of keys are stored whole
        # a scale and a minimum of each dimension of keys for 32 positions
        (np.float32, "int4", (32 / 2 + 2 * 32 * 2 / 32 + 32 / 2 + 2) / (2 * 8)),
    ],
)
def test_kv_bytes_are_what_is_allocated(compute, kv_dtype, number_bytes):
    backend, config = NumpyBackend(compute), tiny_config()
    per_block = backend.kv_bytes_per_block(config, 32, kv_dtype)
    assert per_block == 32 * 2 * 3 * 2 * 8 * number_bytes
    slot = open_key_bytes(config, kv_dtype)
    assert backend.make_kv_cache(config, 5, 32, kv_dtype).num_bytes == 5 * per_block + slot
    assert backend.open_area_bytes(config, kv_dtype) == 0


@pytest.mark.parametrize("kv_dtype", ["int2", "float32"])
def test_unknown_kv_formats_are_refused_by_name(kv_dtype):
    backend = NumpyBackend()
    message = rf"kv_cache_dtype='{kv_dtype}'.*'bf16', 'f32', 'int8', 'int8,int4', 'int4'"
    with pytest.raises(ValueError, match=message):
        backend.kv_bytes_per_block(tiny_config(), 32, kv_dtype)
    with pytest.raises(ValueError, match=message):
        backend.make_kv_cache(tiny_config(), 2, 32, kv_dtype)


def test_bytes_of_weights_and_between_ops(backend):
    size = backend.weights.itemsize
    decoder = backend.compile(None, TINY_SHAPE)
    weights = decoder.step_weights
    layers, head = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48), 96 * 32
    assert weights == StepWeights(layers * size, head * size, "f32", expert_bytes=0)
    assert weights.num_bytes(with_head=False) == layers * size
    assert weights.num_bytes(with_head=True) == (layers + head) * size
    assert decoder.scratch_bytes(10) == 10 * (6 * 48 + 4 * 32) * size


def test_other_compute_types_are_refused():
    with pytest.raises(ValueError, match=r"float16.*float32 and float64"):
        NumpyBackend(np.float16)
