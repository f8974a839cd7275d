"""Parameters without numbers: what a decoder takes of memory, before anything is read."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pellucid.backends.base import MatrixShape, Weights
from pellucid.backends.ops import Matrix, Parameters, Weight
from pellucid.backends.quantization.formats import (
    F32,
    FloatFormat,
    IntegerFormat,
    MatrixFormat,
)
from pellucid.backends.row_table import MatrixRows
from pellucid.loading.stored_model import StoredModel

# Of the matrix of ours with this name: one format, or that of each of its parts.
FindFormats: TypeAlias = Callable[[str], Sequence[MatrixFormat]]


def stored_formats(model: StoredModel) -> FindFormats:
    """The formats in memory of the matrices of an open checkpoint.

    Raises:
        ValueError: when it is called for a matrix that the checkpoint lacks.
    """

    def find(name: str) -> Sequence[MatrixFormat]:
        recipe = model.names.recipe(name)
        return [
            _format_of(
                model,
                # The experts together, or the first of them.
                source.of_all_experts.tensor("weight"),
                source.of_expert(0).tensor("weight"),
            )
            for source in recipe.sources
        ]

    return find


def _format_of(model: StoredModel, *tensors: str) -> MatrixFormat:
    candidates = [name for tensor in tensors for name in model.names.candidates(tensor)]
    for name in candidates:
        if name in model.tensors:
            return model.tensors.matrix_format(name)
    raise ValueError(f"{model.tensors.location}: tensor {' or '.join(candidates)} is missing")


@dataclass(eq=False)
class PlannedParameters(Parameters):
    """The `Parameters` of a decoder that is compiled for its `scratch_bytes` and does not run.

    Args:
        weights: makes the handles.
        find_formats: of the matrices as they are stored.
        weight_format: to which all matrices are quantized; None: each keeps its own.

    Attributes:
        num_bytes: of all weights in memory, without the padding of kernels' layouts.
    """

    _weights: Weights
    _find_formats: FindFormats
    _format: IntegerFormat | None
    num_bytes: int = 0

    def make(self, weight: Weight) -> Any:
        match weight.kind:
            case "matrix":
                num_rows = weight.shape[0]
                own = _rows_of(self._shapes(weight), self._weights.own_rows(num_rows))
                return self._weights.shared(self._planned(own, weight.has_bias), num_rows)
            case "router":
                (stored,) = self._find_formats(weight.name)
                number = stored if isinstance(stored, FloatFormat) else F32
                shape = MatrixShape(number, *weight.shape)
                return self._planned([shape], weight.has_bias, rounds_activations=False)
            case "experts":
                before = self.num_bytes
                handle = self._planned(self._shapes(weight), weight.has_bias)
                num_experts = weight.shape[0]
                own_experts = self._weights.own_experts(num_experts)
                num_in_memory = len(own_experts) if self._weights.expert_reads is None else 0
                self.num_bytes = before + num_in_memory * (self.num_bytes - before)
                return (handle,) * num_experts
            case "table":
                return self._weights.table(MatrixRows(np.broadcast_to(np.float32(0), weight.shape)))
            case "vector" | "convolution":
                size = math.prod(weight.shape)
                self.num_bytes += F32.num_bytes(1, size)  # as all vectors
                return self._weights.vector(np.ones(size, np.float32))

    def _shapes(self, weight: Weight) -> list[MatrixShape]:
        """The matrices of which one consists; of `experts`, that of one of them."""
        *_, num_rows, num_columns = weight.shape
        formats = self._find_formats(weight.name) if self._format is None else [self._format]
        rows_of_parts = weight.parts if len(formats) > 1 else (num_rows,)
        shapes: list[MatrixShape] = []
        for own, rows in zip(formats, rows_of_parts, strict=True):
            if shapes and (joined := _joined(shapes[-1].format, own)) is not None:
                shapes[-1] = MatrixShape(joined, shapes[-1].num_outputs + rows, num_columns)
            else:
                shapes.append(MatrixShape(own, rows, num_columns))
        return shapes

    def _planned(
        self, shapes: Sequence[MatrixShape], bias: bool, rounds_activations: bool = True
    ) -> Matrix:
        item_bytes = self._weights.itemsize
        for kind, num_outputs, num_inputs in shapes:
            stored = kind if item_bytes is None else FloatFormat(kind.name, item_bytes)
            self.num_bytes += stored.num_bytes(num_outputs, num_inputs)
            self.num_bytes += F32.num_bytes(1, num_outputs) if bias else 0
        return self._weights.planned(shapes, bias, rounds_activations)


def _joined(before: MatrixFormat, own: MatrixFormat) -> MatrixFormat | None:
    """The format of neighbours as one matrix; None: they are matrices of their own."""
    if before == own:
        return own
    are_floats = isinstance(before, FloatFormat) and isinstance(own, FloatFormat)
    return F32 if are_floats else None  # which holds all numbers of f16 and of bf16


def _rows_of(shapes: Sequence[MatrixShape], rows: slice) -> list[MatrixShape]:
    """Rows of the matrices `shapes`, which follow each other."""
    found, first = [], 0
    for kind, num_rows, num_columns in shapes:
        num_own = min(rows.stop - first, num_rows) - max(rows.start - first, 0)
        if num_own > 0:
            found.append(MatrixShape(kind, num_own, num_columns))
        first += num_rows
    return found
