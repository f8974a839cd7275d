"""The formats of weights quantized elsewhere: native linears and embeddings, compared with their definition.

To these nothing is quantized, so the matrices are random codes, scales and minimums.
"""

import numpy as np
import pytest
from msgspec.structs import force_setattr

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.native import kernel_levels
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization import formats
from support.random_matrices import random_matrix
from support.row_invariance import same_in_any_step

EPS = np.finfo(np.float32).eps
FORMATS = {
    name: each for name, each in formats.STORED_FORMATS.items() if name not in formats.FORMATS
}
DEFINITION = NumpyBackend()


@pytest.fixture(scope="module", params=kernel_levels())
def backend(request):
    return CpuBackend(num_threads=2, isa=request.param)


def cases(name, num_columns):
    rng = np.random.default_rng(num_columns)
    matrix = random_matrix(FORMATS[name], 70, num_columns, rng)
    return matrix, rng.normal(size=(21, num_columns)).astype(np.float32), rng


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("num_columns", [16, 300, 512])
def test_linear(backend, name, num_columns):
    matrix, x, _ = cases(name, num_columns)
    bias = x[0, :1].repeat(70)
    expected = DEFINITION.ops.linear(x, DEFINITION.weights.matrix(matrix, bias))
    # What is rounded are scales, minimums and the sum over groups, the products of codes are exact.
    weights = np.abs(matrix.dequantize()).astype(np.float64)
    minimums = matrix.group_minimums()
    if minimums is not None:  # they may have cancelled
        weights += 2 * np.abs(minimums).repeat(matrix.format.group_size, 1)[:, :num_columns]
    sizes = np.abs(x).max(axis=1, keepdims=True) * weights.sum(axis=1) + np.abs(bias)
    num_roundings = 3 * (matrix.format.num_groups(num_columns) + 4)
    error = np.abs(backend.ops.linear(x, backend.weights.matrix(matrix, bias)) - expected)
    assert (error <= num_roundings * EPS * sizes).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_its_batch(backend, name):
    matrix, x, rng = cases(name, 160)
    handle = backend.weights.matrix(matrix)
    assert same_in_any_step(lambda rows: backend.ops.linear(rows, handle), x, rng)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("isa", kernel_levels())
def test_activations_as_they_are(isa, name):
    matrix, x, _ = cases(name, 200)
    backend = CpuBackend(isa=isa, quantize_activations=False)
    weights = matrix.dequantize().astype(np.float64)
    minimums = matrix.group_minimums()
    largest = 0 if minimums is None else np.abs(minimums).max()
    sizes = np.abs(x) @ (np.abs(weights) + 2 * largest).T
    error = np.abs(
        backend.ops.linear(x, backend.weights.matrix(matrix)) - x.astype(np.float64) @ weights.T
    )
    assert (error <= 202 * EPS * sizes).all()


@pytest.mark.parametrize("name", FORMATS)
def test_embed_is_exact(backend, name):
    matrix, _, _ = cases(name, 72)
    ids = np.array([69, 0, 0, 33])
    expected = DEFINITION.ops.embed(ids, DEFINITION.weights.matrix(matrix), 3.0)
    assert (backend.ops.embed(ids, backend.weights.matrix(matrix), 3.0) == expected).all()


def test_packing_names_what_is_missing(backend):
    matrix, _, _ = cases("int4-min", 64)
    force_setattr(matrix, "minimums", None)
    with pytest.raises(ValueError, match="minimums: format='int4-min' has them"):
        backend.weights.matrix(matrix)
