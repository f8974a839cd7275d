"""Random weights: the right format and size, and the same numbers every time."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pellucid.backends.quantization.formats import FORMATS, IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.loading.random_parameters import RandomParameters
from support.recording_backend import RecordingBackend

ROWS, COLUMNS = 300, 207  # odd: the last byte of a row of 4-bit codes is half empty


def made(
    weight_format: IntegerFormat | None, name: str = "a", bias: bool = False, columns: int = COLUMNS
) -> list[Any]:
    backend = RecordingBackend()
    RandomParameters(backend.weights, weight_format).matrix(name, ROWS, columns, bias)
    return backend.arrays


def test_floats_are_bf16_of_the_size_of_trained_weights() -> None:
    (weight,) = made(None)
    assert weight.dtype == ml_dtypes.bfloat16 and weight.shape == (ROWS, COLUMNS)
    values = weight.astype(np.float64)
    assert np.isfinite(values).all() and np.abs(values).min() > 1e-4
    assert 0.5 < values.std() * COLUMNS**0.5 < 2
    assert abs(values.mean()) < 0.1 * values.std()


@pytest.mark.parametrize("weight_format", FORMATS.values(), ids=FORMATS)
def test_codes_stand_for_weights_of_that_size(weight_format: IntegerFormat) -> None:
    (matrix,) = made(weight_format)
    assert isinstance(matrix, QuantizedMatrix)
    assert matrix.format == weight_format and matrix.shape == (ROWS, COLUMNS)
    values = matrix.dequantize().astype(np.float64)
    assert 0.7 < values.std() * COLUMNS**0.5 < 1.4
    assert abs(values.mean()) < 0.03 * values.std()
    assert len(np.unique(matrix.codes)) >= (255 if weight_format.bits == 8 else 200)
    if weight_format.bits == 8:
        assert matrix.codes.min() == -127
    else:
        assert (matrix.codes[:, -1] >> 4 == 0).all()
        assert (made(weight_format, columns=208)[0].codes[:, -1] >> 4).any()


def test_a_weight_follows_from_its_name() -> None:
    first, again, other = (made(None, name)[0] for name in ("a", "a", "b"))
    assert (first == again).all()
    assert not (first == other).all()


def test_biases_and_norms() -> None:
    _, bias = made(None, bias=True)
    assert bias.shape == (ROWS,) and 0 < np.abs(bias).max() <= 0.1
    backend = RecordingBackend()
    parameters = RandomParameters(backend.weights)
    parameters.vector("norm.weight", 3)
    parameters.vector("norm.bias", 2)
    assert [array.tolist() for array in backend.arrays] == [[1, 1, 1], [0, 0]]


def test_states_of_a_delta_net_decay() -> None:
    backend = RecordingBackend()
    RandomParameters(backend.weights).vector("layers.0.delta_decay.weight", 2)
    (log_decay,) = backend.arrays
    assert (np.exp(log_decay) < 1).all()
