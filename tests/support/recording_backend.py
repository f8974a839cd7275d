"""A backend that keeps what loading hands over."""

from typing import Any

import numpy.typing as npt

from pellucid.backends.numpy_backend import NumpyBackend, NumpyMatrix


class RecordingBackend(NumpyBackend):
    """`arrays` are the weights and biases as they came, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[npt.NDArray[Any]] = []

    def matrix(self, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None) -> NumpyMatrix:
        self.arrays += [weight] if bias is None else [weight, bias]
        return NumpyMatrix(weight, bias)

    def vector(self, weight: npt.NDArray[Any]) -> Any:
        self.arrays.append(weight)
        return weight
