"""Native quantization gives the bits of its definition, on every level and any number of threads."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.native import kernel_levels
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix

BACKENDS = {
    (isa, threads): CpuBackend(threads, isa) for isa in kernel_levels() for threads in (1, 3)
}
DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def weights_of(shape, dtype, seed):
    """Of many sizes in one matrix: subnormal scales, zeros, groups of one sign, a few outliers."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-9, 4, (shape[0], 1))
    weights = (rng.normal(size=shape) + rng.integers(-2, 3, (shape[0], 1))) * sizes
    weights[rng.random(shape) < 0.1] = 0
    weights[rng.random(shape) < 0.02] *= 30
    return np.clip(weights, -6e4, 6e4).astype(dtype)


@pytest.mark.parametrize("name", FORMATS)
@given(
    st.sampled_from(list(BACKENDS)),
    st.sampled_from(list(DTYPES)),
    st.tuples(st.integers(1, 40), st.integers(1, 400)),
    st.integers(0, 2**32 - 1),
)
def test_same_bits_as_the_definition(name, backend, dtype, shape, seed):
    weights = weights_of(shape, DTYPES[dtype], seed)
    expected = quantize_matrix(weights, FORMATS[name]).arrays
    actual = BACKENDS[backend].weights.quantize(weights, FORMATS[name]).arrays
    assert actual.keys() == expected.keys()
    for part, array in expected.items():
        assert actual[part].tobytes() == array.tobytes(), part


def test_scales_whose_inverse_is_too_large_count_as_zero():
    weights = np.float32(2.0) ** np.float32([[-127], [-126], [-125], [-124]]) * 127
    for backend in (BACKENDS["portable", 1], NumpyBackend()):
        found = backend.weights.quantize(weights, FORMATS["int8-channel"])
        assert found.codes.tolist() == [[0], [0], [0], [127]]


@pytest.mark.parametrize("name", ["int8", "int4", "int4-zp"])
def test_weights_beyond_the_scales_are_refused(name):
    with pytest.raises(ValueError, match=r"weights up to 1e\+10 are too large for int"):
        BACKENDS["portable", 1].weights.quantize(np.full((2, 32), 1e10), FORMATS[name])
