"""Quantizes weight matrices: chooses scales, zero points and codes.

The scale of 8 bits follows from a group's largest weight. With 4 bits it pays to search: a few grids
are tried, each is fitted by least squares, and the one with the smallest squared error wins, as
llama.cpp's `make_qx_quants` (ggml-quants.c) does for its formats.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix, empty_matrix, pack_nibbles

Floats: TypeAlias = npt.NDArray[np.float32]

_CHUNK = 1 << 15  # weights at a time: all temporaries stay in a core's cache
_LARGEST_INT8 = 127
_LARGEST_INT4 = 15
_SYMMETRIC_ZERO_POINT = 8
# How many steps the weights reach beyond the grid. Above 0, the outermost weights are clipped, and the other
# weights get a finer grid.
_SYMMETRIC_STEPS = (-0.9, -0.4, 0.0, 0.4, 0.9, 1.6, 2.4)
_ZERO_POINT_STEPS = (-1.6, -0.8, 0.0, 0.8, 1.6, 2.4)


def quantize_matrix(weight: npt.NDArray[Any], weight_format: IntegerFormat) -> QuantizedMatrix:
    """The matrix in `weight_format` that is close to `weight`. Depends on nothing else, row by row.

    Args:
        weight: [N, K], any float dtype, finite.
        weight_format: one of `FORMATS`.

    Raises:
        ValueError: a weight is too large for the format's scales.
    """
    assert not weight_format.has_minimums  # such formats only hold what was quantized elsewhere
    num_outputs, num_inputs = weight.shape
    matrix = empty_matrix(weight_format, num_outputs, num_inputs)
    arrays = matrix.arrays
    group_size = weight_format.group_size or num_inputs
    padded_inputs = weight_format.num_groups(num_inputs) * group_size
    step = max(1, _CHUNK // padded_inputs)
    for start in range(0, num_outputs, step):
        rows = slice(start, start + step)
        chunk = weight[rows]
        # [group_size, groups of all rows]: sums over a group run along the slow axis, which is fast, and
        # in order. A second row keeps it so: of a single group NumPy would sum pairs.
        padded = np.zeros((max(2, len(chunk)), padded_inputs), np.float32)
        padded[: len(chunk), :num_inputs] = chunk
        groups = np.ascontiguousarray(padded.reshape(-1, group_size).T)
        fit = (
            _fit_int8(groups, arrays["scales"].dtype)
            if weight_format.bits == 8
            else _fit_int4(groups, weight_format)
        )
        codes = fit.codes.T.reshape(len(padded), padded_inputs)[: len(chunk), :num_inputs]
        arrays["codes"][rows] = codes if weight_format.bits == 8 else pack_nibbles(codes)
        scales = fit.scales.reshape(len(padded), -1)[: len(chunk)]
        arrays["scales"][rows] = scales.reshape(arrays["scales"][rows].shape)
        if weight_format.has_zero_points:
            arrays["zero_points"][rows] = fit.zero_points.reshape(len(padded), -1)[: len(chunk)]
    check_scales(matrix, weight)
    return matrix


def check_scales(matrix: QuantizedMatrix, weight: npt.NDArray[Any]) -> None:
    """Raises the ValueError of `quantize_matrix` if a scale of its result is infinite."""
    if not np.isfinite(matrix.scales).all():
        raise ValueError(
            f"weights up to {np.abs(weight).max():g} are too large for {matrix.format.name}: "
            f"its scales end at {np.finfo(matrix.scales.dtype).max}"
        )


class QuantizationError(Struct, frozen=True):
    """The rounding errors of a quantized matrix.

    Args:
        relative_rms: root of the mean squared error over that of the mean squared weight.
        largest: the largest absolute error of a weight.
    """

    relative_rms: float
    largest: float


def quantization_error(weight: npt.NDArray[Any], matrix: QuantizedMatrix) -> QuantizationError:
    """The distance between a matrix [N, K] and its quantized form."""
    num_outputs, num_inputs = matrix.shape
    squares, squared_errors, largest = 0.0, 0.0, 0.0
    step = max(1, _CHUNK // num_inputs)
    for start in range(0, num_outputs, step):
        rows = slice(start, start + step)
        original = weight[rows].astype(np.float32)
        error = matrix.rows(rows).dequantize() - original
        squares += float(np.vdot(original, original))
        squared_errors += float(np.vdot(error, error))
        largest = max(largest, float(np.abs(error).max()))
    relative_rms = (squared_errors / squares) ** 0.5 if squares else 0.0
    return QuantizationError(relative_rms, largest)


class _Fit(Struct, frozen=True):
    codes: npt.NDArray[Any]  # [group_size, groups]
    scales: npt.NDArray[Any]  # [groups]
    zero_points: npt.NDArray[Any]  # [groups]


def _fit_int8(groups: Floats, scale_dtype: np.dtype[Any]) -> _Fit:
    exact = np.abs(groups).max(axis=0) / np.float32(_LARGEST_INT8)
    with np.errstate(over="ignore"):  # an infinity is reported once, at the end
        scales = exact.astype(scale_dtype)
    # Tiny f16 are coarse: one below its exact value could leave the largest weight out of range.
    scales = np.where(scales < exact, np.nextafter(scales, scale_dtype.type(np.inf)), scales)
    codes = np.rint(groups * _inverse(scales))
    return _Fit(codes.astype(np.int8), scales, np.zeros(0))


def _fit_int4(groups: Floats, weight_format: IntegerFormat) -> _Fit:
    grids = (
        _grids_with_zero_points(groups)
        if weight_format.has_zero_points
        else _symmetric_grids(groups)
    )
    best_gain = np.full(groups.shape[1], -1, np.float32)
    best_scale = np.zeros(groups.shape[1], np.float32)
    best_zero_point = np.full(groups.shape[1], _SYMMETRIC_ZERO_POINT, np.float32)
    for inverse, zero_point in grids:
        codes = _centered_codes(groups, inverse, zero_point)
        # The scale with the least squared error, sum (x - scale * code)^2, and by how much it is
        # below sum x^2.
        product, square = (codes * groups).sum(axis=0), (codes * codes).sum(axis=0)
        square[square == 0] = np.inf
        gain = product * product / square
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(best_scale, product / square, where=better)
        np.copyto(best_zero_point, zero_point, where=better)
    with np.errstate(over="ignore"):
        scales = best_scale.astype(np.float16) + np.float16(0)  # zero has no sign
    codes = _centered_codes(groups, _inverse(scales), best_zero_point)
    return _Fit((codes + best_zero_point).astype(np.uint8), scales, best_zero_point)


def _symmetric_grids(groups: Floats) -> Iterator[tuple[Floats, Floats]]:
    """1 / scale and zero point of each grid to try. The scale's sign puts the weight that is largest by
    magnitude on the longer side, -8."""
    index = np.abs(groups).argmax(axis=0)[None]
    largest = np.take_along_axis(groups, index, axis=0)[0]
    zero_point = np.full_like(largest, _SYMMETRIC_ZERO_POINT)
    for step in _SYMMETRIC_STEPS:
        yield _inverse(-largest / np.float32(_SYMMETRIC_ZERO_POINT + step)), zero_point


def _grids_with_zero_points(groups: Floats) -> Iterator[tuple[Floats, Floats]]:
    lowest = np.minimum(groups.min(axis=0), 0)
    spread = np.maximum(groups.max(axis=0), 0) - lowest
    for step in _ZERO_POINT_STEPS:
        inverse = _inverse(spread / np.float32(_LARGEST_INT4 + step))
        # Both ends share what lies beyond.
        zero_point = np.rint(-lowest * inverse - np.float32(step / 2))
        yield inverse, np.clip(zero_point, 0, _LARGEST_INT4)


def _centered_codes(groups: Floats, inverse: Floats, zero_point: Floats) -> Floats:
    codes = groups * inverse
    np.rint(codes, out=codes)
    return np.clip(codes, -zero_point, _LARGEST_INT4 - zero_point, out=codes)


def _inverse(scales: npt.NDArray[Any]) -> Floats:
    """1 / scale, 0 where a group is all zeros or too small for a float's inverse."""
    scales = scales.astype(np.float32)
    usable = np.abs(scales) > np.float32(2.0**-125)
    return np.where(usable, 1 / np.where(usable, scales, np.float32(1)), np.float32(0))
