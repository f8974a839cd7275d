"""A backend that records the weights that loading passes to it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.numpy.weights import NumpyMatrix, NumpyWeights
from pellucid.backends.row_table import MatrixRows


class RecordingWeights(NumpyWeights):
    """`arrays` are the weights and biases as they came, in order."""

    def __init__(self) -> None:
        super().__init__(np.float32, quantize_activations=True)
        self.arrays: list[npt.NDArray[Any]] = []

    def matrix(
        self,
        weight: npt.NDArray[Any],
        bias: npt.NDArray[Any] | None = None,
        rounds_activations: bool = True,
    ) -> NumpyMatrix:
        self.arrays += [weight] if bias is None else [weight, bias]
        return NumpyMatrix(weight, bias)

    def table(self, rows: MatrixRows) -> Any:
        self.arrays.append(rows.matrix)
        return super().table(rows)

    def vector(self, weight: npt.NDArray[Any]) -> Any:
        self.arrays.append(weight)
        return weight


class RecordingBackend(NumpyBackend):
    """The NumPy backend with `RecordingWeights`."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: RecordingWeights = RecordingWeights()

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        return self.weights.arrays
