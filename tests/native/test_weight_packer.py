"""Weights that are packed in the background equal weights that are packed at once."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.cpu.weights import is_mapped
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.loading.files import MappedFile

SHAPE = (1000, 320)


@pytest.fixture
def weight():
    return np.random.default_rng(1).standard_normal(SHAPE, np.float32)


def mapped(path: Path, array):
    """`array` in a file, as a view of it."""
    path.write_bytes(array.tobytes())
    return MappedFile(path).bytes.view(array.dtype).reshape(array.shape)


def test_views_of_files_are_told_from_other_arrays(tmp_path, weight):
    view = mapped(tmp_path / "weight", weight)
    assert is_mapped(view) and is_mapped(view[3:].T) and is_mapped(np.ascontiguousarray(view))
    assert not is_mapped(weight) and not is_mapped(view.copy()) and not is_mapped(view + 1)
    assert not is_mapped(np.frombuffer(b"12345678", np.float32))


def check(on_file, at_once, num_bytes):
    """Makes the same matrix of both and multiplies with it; `num_bytes` of files."""
    x = np.random.default_rng(2).standard_normal((3, SHAPE[1]), np.float32)
    plain, ahead = CpuBackend(2), CpuBackend(2)
    ahead.weights.expect(1 << 27)
    handles = [ahead.weights.matrix(on_file) for _ in range(5)]
    assert ahead.weights.waiting_bytes == 5 * num_bytes  # so few are left to those who help
    while ahead.weights.read() > 0:
        pass
    expected = plain.ops.linear(x, plain.weights.matrix(at_once))
    for handle in handles:
        np.testing.assert_array_equal(ahead.ops.linear(x, handle), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats(tmp_path, weight, dtype):
    weight = weight.astype(dtype)
    check(mapped(tmp_path / "weight", weight), weight, weight.nbytes)


@pytest.mark.parametrize("name", ["int8", "int8-channel", "int4", "int4-g128-zp"])
def test_integers(tmp_path, weight, name):
    matrix = quantize_matrix(weight, FORMATS[name])
    arrays = {part: mapped(tmp_path / part, array) for part, array in matrix.arrays.items()}
    num_bytes = sum(array.nbytes for array in arrays.values())
    check(QuantizedMatrix(matrix.format, matrix.num_inputs, **arrays), matrix, num_bytes)


def test_other_arrays_are_packed_at_once(weight):
    ahead = CpuBackend(2)
    ahead.weights.expect(1 << 27)
    handle = ahead.weights.matrix(weight)
    assert ahead.weights.waiting_bytes == ahead.weights.read() == 0
    x = np.ones((1, SHAPE[1]), np.float32)
    plain = CpuBackend(2)
    np.testing.assert_array_equal(
        ahead.ops.linear(x, handle), plain.ops.linear(x, plain.weights.matrix(weight))
    )
