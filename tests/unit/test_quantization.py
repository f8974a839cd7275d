"""Integer weight formats: the numbers that codes stand for, their error, and the linear with them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.activations import quantize_activations
from pellucid.backends.quantization.formats import (
    BLOCK,
    FORMATS,
    INT4,
    INT8,
    STORED_FORMATS,
    ScaleKind,
)
from pellucid.backends.quantization.matrix import concatenate_rows, pack_nibbles
from pellucid.backends.quantization.weights import quantization_error, quantize_matrix
from pellucid.inputs.config import QUANTIZATIONS
from support.random_matrices import random_matrix
from support.row_invariance import same_in_any_step

formats = st.sampled_from(list(FORMATS.values()))
stored_formats = st.sampled_from(list(STORED_FORMATS.values()))
seeds = st.integers(0, 2**32 - 1)
OPS = NumpyBackend()


def weights_one_by_one(matrix):
    """The definition, one weight at a time: scale * (code - zero point), then + minimum."""
    num_outputs, num_inputs = matrix.shape
    weights = np.empty(matrix.shape, np.float32)
    for n in range(num_outputs):
        for k in range(num_inputs):
            group = k // (matrix.format.group_size or num_inputs)
            if matrix.format.bits > 4:
                code, zero_point = int(matrix.codes[n, k]), 0
            else:
                code = int(matrix.codes[n, k // 2]) >> (4 if k % 2 else 0) & 15
                zero_point = 8 if matrix.minimums is None else 0
                if matrix.zero_points is not None:
                    zero_point = int(matrix.zero_points[n, group])
                if matrix.format.codebook:
                    code, zero_point = matrix.format.codebook[code], 0
            scale = float(matrix.scales.reshape(num_outputs, -1)[n, group])
            if matrix.format.scale is ScaleKind.EXPONENT:
                scale = 2.0 ** (scale - 127)
            if matrix.scale_factors is not None:
                scale *= float(matrix.scale_factors[n, k // BLOCK])
            weights[n, k] = scale * (code - zero_point)
            if matrix.minimums is not None:
                minimum = np.float32(matrix.minimums[n, group])
                if matrix.minimum_factors is not None:
                    minimum *= np.float32(matrix.minimum_factors[n, k // BLOCK])
                weights[n, k] += minimum
    return weights


# Of 256 weights; the first six are those that the engine takes.
BYTES = {
    "int8": 272,
    "int8-channel": 260,
    "int4": 144,
    "int4-g128": 132,
    "int4-zp": 152,
    "int4-g128-zp": 134,
    "int8-min": 288,
    "int4-min": 160,
    "int5-k": 180,
    "int4-k": 148,
    "int6-k16": 210,
    "int4-k16": 164,
    "int4-s16": 146,
    "mxfp4": 136,
    "iq4-nl": 144,
    "iq4-xs": 138,
    "nf4": 136,
    "int4-g64": 136,
    "int4-g64-zp": 140,
}


def test_the_bytes_of_each_format():
    assert {name: each.num_bytes(1, 256) for name, each in STORED_FORMATS.items()} == BYTES
    assert ("none", *FORMATS) == QUANTIZATIONS == ("none", *[*BYTES][:6])


@given(stored_formats, seeds, st.integers(1, 5), st.integers(1, 300))
def test_dequantize(weight_format, seed, num_outputs, num_inputs):
    matrix = random_matrix(weight_format, num_outputs, num_inputs, np.random.default_rng(seed))
    exact = weights_one_by_one(matrix)
    assert matrix.dequantize().dtype == np.float32
    assert (matrix.dequantize() == exact).all()


def test_a_byte_of_zero_is_a_scale_of_zero():
    matrix = random_matrix(STORED_FORMATS["mxfp4"], 2, 32, np.random.default_rng(0))
    matrix.scales[:] = [[0], [1]]
    expected = matrix.centered_codes() * np.array([[0], [2.0**-126]])
    assert (matrix.dequantize() == expected).all()


@given(stored_formats, seeds, st.integers(2, 6), st.integers(1, 150))
def test_rows_and_their_concatenation(weight_format, seed, num_outputs, num_inputs):
    matrix = random_matrix(weight_format, num_outputs, num_inputs, np.random.default_rng(seed))
    order = np.random.default_rng(seed).permutation(num_outputs)
    parts = [matrix.rows(order[:1]), matrix.rows(order[1:])]
    assert (concatenate_rows(parts).dequantize() == matrix.dequantize()[order]).all()
    assert sum(part.num_bytes for part in parts) == matrix.num_bytes


# -- quantizing weights ----------------------------------------------------------------------------


@given(formats, seeds, st.integers(1, 40), st.integers(1, 300))
def test_no_weight_moves_further_than_its_grid_allows(weight_format, seed, num_outputs, num_inputs):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(num_outputs, num_inputs)) * np.exp(rng.normal(size=(num_outputs, 1)))
    matrix = quantize_matrix(weight, weight_format)
    assert matrix.format == weight_format and matrix.shape == weight.shape
    steps = np.abs(matrix.scales.astype(np.float64).reshape(num_outputs, -1))
    steps = np.repeat(steps, weight_format.group_size or num_inputs, axis=1)[:, :num_inputs]
    error = np.abs(matrix.dequantize() - weight.astype(np.float32))
    found = quantization_error(weight, matrix)
    assert found.largest == error.max()
    rms = np.sqrt(np.square(error.astype(np.float64)).mean() / np.square(weight).mean())
    assert found.relative_rms == pytest.approx(rms, rel=1e-4)
    if weight_format.bits == 8:
        assert (error <= steps * 0.5001).all()
    else:  # the best fit may clip a weight, by no more than the grids that are tried allow
        assert (error <= steps * 4).all()


@given(seeds, st.sampled_from(["int4", "int4-g128", "int4-zp", "int4-g128-zp"]))
def test_the_search_beats_rounding_to_the_largest_weight(seed, name):
    weight_format = FORMATS[name]
    weight = np.random.default_rng(seed).normal(size=(8, 256)).astype(np.float32)
    groups = weight.reshape(8, -1, weight_format.group_size)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / 7
    plain = np.rint(groups / scales) * scales - groups
    error = quantization_error(weight, quantize_matrix(weight, weight_format))
    assert error.relative_rms < 0.95 * np.sqrt(np.square(plain).mean() / np.square(groups).mean())


@given(seeds, st.sampled_from([INT8, INT4]))
def test_what_is_on_a_grid_stays_there(seed, weight_format):
    rng = np.random.default_rng(seed)
    end = -8 if weight_format is INT4 else 127
    codes = rng.integers(min(end, -end) + 1, abs(end), (3, 4, 32))
    codes[..., rng.integers(32)] = end  # or a finer grid would do
    scales = np.exp(rng.normal(size=(3, 4, 1))).astype(np.float16).astype(np.float32)
    weight = (codes * scales).reshape(3, 128)
    matrix = quantize_matrix(weight, weight_format)
    assert (matrix.dequantize() == weight).all()
    assert quantization_error(weight, matrix).relative_rms == 0


def test_a_row_is_quantized_alike_whatever_stands_beside_it():
    weight = np.random.default_rng(0).normal(size=(2000, 96))
    for weight_format in FORMATS.values():
        whole = quantize_matrix(weight, weight_format).dequantize()
        assert (quantize_matrix(weight[700:701], weight_format).dequantize() == whole[700]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_and_tiny_weights(name):
    weight = np.zeros((3, 64), np.float32)
    weight[1] = 1e-9
    weight[2] = np.float32(1e-42)
    matrix = quantize_matrix(weight, FORMATS[name])
    assert (matrix.dequantize()[0] == 0).all()
    assert quantization_error(weight[:1], matrix.rows(slice(1))).relative_rms == 0
    assert np.abs(matrix.dequantize() - weight).max() <= 6e-8  # the smallest f16


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "int8-channel"])
def test_weights_beyond_f16_scales_are_refused(name):
    with pytest.raises(ValueError, match=r"up to 1e\+10 are too large for int.*65504"):
        quantize_matrix(np.full((2, 32), 1e10), FORMATS[name])


def test_nibbles_are_packed_low_first_and_padded_with_zeros():
    assert pack_nibbles(np.array([[1, 2, 3]], np.uint8)).tolist() == [[0x21, 0x03]]


# -- activations -----------------------------------------------------------------------------------


@given(
    seeds,
    st.integers(1, 4),
    st.integers(1, 100),
    st.sampled_from([32, 128]),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_activations_one_by_one(seed, num_rows, num_inputs, group_size, spread):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_inputs)).astype(np.float32)
    x *= np.exp2(rng.integers(-40, 40, x.shape).astype(np.float32) * spread)
    rows = quantize_activations(x, group_size)
    for row in range(num_rows):
        for start in range(0, num_inputs, group_size):
            group = x[row, start : start + group_size]
            amax = np.float32(max(map(abs, group)))
            index = row, start // group_size
            assert rows.scales[index] == amax / np.float32(127)
            inverse = np.float32(127) / amax
            expected = [int(np.rint(value * inverse)) for value in group]
            assert rows.codes[index][: len(group)].tolist() == expected
            assert not rows.codes[index][len(group) :].any()


def test_ties_go_to_the_even_code():
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32)
    assert quantize_activations(x, 32).codes[0, 0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_in_every_output(bad):
    x = np.ones((2, 64), np.float32)
    x[1, 40] = bad
    y = OPS.ops.linear(x, OPS.weights.matrix(quantize_matrix(np.ones((5, 64)), INT8)))
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all()


def test_tiny_activations_count_as_zero():
    x = np.full((1, 32), 1e-38, np.float32)
    rows = quantize_activations(x, 32)
    assert not rows.codes.any() and not rows.scales.any()


# -- linear and embed ------------------------------------------------------------------------------


@given(
    stored_formats, seeds, st.integers(1, 6), st.integers(1, 9), st.integers(1, 200), st.booleans()
)
def test_linear_is_its_definition(
    weight_format, seed, num_tokens, num_outputs, num_inputs, has_bias
):
    rng = np.random.default_rng(seed)
    matrix = random_matrix(weight_format, num_outputs, num_inputs, rng)
    bias = rng.normal(size=num_outputs).astype(np.float32) if has_bias else None
    x = rng.normal(size=(num_tokens, num_inputs)).astype(np.float32)
    rows = quantize_activations(x, weight_format.group_size or num_inputs)
    num_groups = rows.scales.shape[1]
    centered = np.zeros((num_outputs, rows.codes[0].size), np.int64)
    centered[:, :num_inputs] = matrix.centered_codes()
    centered = centered.reshape(num_outputs, num_groups, -1)
    weight_scales, minimums = matrix.group_scales(), matrix.group_minimums()
    y = np.zeros((num_tokens, num_outputs), np.float32)
    for group in range(num_groups):
        x_scales = rows.scales[:, group, None]
        products = rows.codes[:, group].astype(np.int64) @ centered[:, group].T
        y += products.astype(np.float32) * (weight_scales[:, group] * x_scales)
        if minimums is not None:
            sums = rows.codes[:, group].sum(axis=-1, dtype=np.int64, keepdims=True)
            y += (sums.astype(np.float32) * x_scales) * minimums[:, group]
    y = y if bias is None else y + bias
    assert (OPS.ops.linear(x, OPS.weights.matrix(matrix, bias)) == y).all()


def test_sums_of_long_rows_are_exact():
    rng = np.random.default_rng(0)
    matrix = quantize_matrix(rng.uniform(0.8, 1, (3, 1 << 17)), FORMATS["int8-channel"])
    x = rng.uniform(0.8, 1, (1, 1 << 17)).astype(np.float32)
    rows = quantize_activations(x, 1 << 17)
    sums = rows.codes[0].astype(np.int64) @ matrix.codes.T.astype(np.int64)
    expected = sums.astype(np.float32) * (matrix.scales * rows.scales[0])
    assert (OPS.ops.linear(x, OPS.weights.matrix(matrix)) == expected).all()


@given(stored_formats, seeds, st.integers(1, 70), st.integers(1, 40), st.integers(1, 150))
def test_a_row_does_not_depend_on_its_batch(
    weight_format, seed, num_tokens, num_outputs, num_inputs
):
    rng = np.random.default_rng(seed)
    handle = OPS.weights.matrix(random_matrix(weight_format, num_outputs, num_inputs, rng))
    x = rng.normal(size=(num_tokens, num_inputs)).astype(np.float32)
    assert same_in_any_step(lambda rows: OPS.ops.linear(rows, handle), x, rng)


@given(stored_formats, seeds)
def test_activations_may_stay_floats(weight_format, seed):
    rng = np.random.default_rng(seed)
    backend = NumpyBackend(quantize_activations=False)
    matrix = random_matrix(weight_format, 6, 100, rng)
    x = rng.normal(size=(3, 100)).astype(np.float32)
    floats = backend.ops.linear(x, backend.weights.matrix(matrix.dequantize()))
    assert (backend.ops.linear(x, backend.weights.matrix(matrix)) == floats).all()


@given(stored_formats, seeds)
def test_embed_takes_the_rows_that_the_codes_stand_for(weight_format, seed):
    matrix = random_matrix(weight_format, 9, 70, np.random.default_rng(seed))
    rows = OPS.ops.embed(np.array([3, 0, 8, 3]), OPS.weights.matrix(matrix), scale=2.0)
    assert (rows == 2 * matrix.dequantize()[[3, 0, 8, 3]]).all()
