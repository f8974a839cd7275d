"""Where weights come from: tensors by name, however they are stored."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.quantization.matrix import QuantizedMatrix, concatenate_rows

Tensor: TypeAlias = npt.NDArray[Any] | QuantizedMatrix


class TensorFacts(Protocol):
    """What is known of a tensor before it is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def num_bytes(self) -> int: ...


class TensorSource(Protocol):
    """The tensors of a checkpoint by name."""

    @property
    def location(self) -> Path:
        """The file or directory that they are all in, for messages."""
        ...

    def __contains__(self, name: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def info(self, name: str) -> TensorFacts: ...

    def path(self, name: str) -> Path:
        """The file that holds the tensor `name`."""
        ...

    def tensor(self, name: str) -> Tensor:
        """The tensor `name`, perhaps a read-only view of its file.

        Raises:
            ValueError: it is in a format that we do not read.
        """
        ...

    def release(self, name: str) -> None:
        """Gives back the memory behind the tensor `name`, which may be read again."""
        ...


def as_floats(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers that a tensor stands for."""
    return tensor.dequantize() if isinstance(tensor, QuantizedMatrix) else tensor


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """One matrix or vector of the rows of all parts: in their format if they share one, else in floats."""
    if len(parts) == 1:
        return parts[0]
    matrices = [part for part in parts if isinstance(part, QuantizedMatrix)]
    if len(matrices) == len(parts) and len({matrix.format for matrix in matrices}) == 1:
        return concatenate_rows(matrices)
    return np.concatenate([as_floats(part) for part in parts])
