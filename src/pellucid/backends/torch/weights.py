"""Weights on a device, in the formats of their files; products widen them to f32."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pellucid.backends.base import JoinedHandle, Weights
from pellucid.backends.joined_matrix import UniformMatrix, in_arrays
from pellucid.backends.quantization.formats import BLOCK, IntegerFormat, ScaleKind
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.backends.torch.memory import TORCH_DTYPES, to_device

# Numbers of a matrix that are f32 at the same time: 64 MiB.
MAX_WIDENED = 1 << 24


class TorchMatrix(Protocol):
    """weight [N, K] and bias [N] on a device."""

    @property
    def bias(self) -> Tensor | None: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def widened(self, rows: slice | Tensor) -> Tensor:
        """Some rows in f32, [rows, K]."""
        ...


def parts_of(matrix: TorchMatrix) -> Iterator[slice]:
    """The rows of a matrix that a product takes together: they depend on its shape alone."""
    num_outputs, num_inputs = matrix.shape
    step = max(1, MAX_WIDENED // num_inputs)
    return (slice(start, start + step) for start in range(0, num_outputs, step))


@dataclass(frozen=True)
class TorchFloats:
    """A matrix of floats."""

    weight: Tensor
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        num_outputs, num_inputs = self.weight.shape
        return num_outputs, num_inputs

    def widened(self, rows: slice | Tensor) -> Tensor:
        return self.weight[rows].float()

    def part(self, rows: slice) -> "TorchFloats":
        """Some of its outputs, in the same memory."""
        return TorchFloats(self.weight[rows], None if self.bias is None else self.bias[rows])


@dataclass(frozen=True)
class TorchCodes:
    """A matrix of codes.

    Args:
        num_inputs: K.
        arrays: those of `QuantizedMatrix`, by name.
    """

    format: IntegerFormat
    num_inputs: int
    arrays: Mapping[str, Tensor]
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.arrays["codes"]), self.num_inputs

    @cached_property
    def codebook(self) -> Tensor:
        """The numbers of `IntegerFormat.codebook`, int8."""
        codebook = np.array(self.format.codebook, np.int8)
        return to_device(codebook, self.arrays["codes"].device)

    def widened(self, rows: slice | Tensor) -> Tensor:
        """What `QuantizedMatrix.dequantize` gives, bit for bit."""
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        scales = self._per_group(arrays["scales"], arrays.get("scale_factors"))
        weights = self._centered(arrays).float() * self._per_input(scales)
        if "minimums" in arrays:
            minimums = self._per_group(arrays["minimums"], arrays.get("minimum_factors"))
            weights = weights + self._per_input(minimums)
        return weights

    def part(self, rows: slice) -> "TorchCodes":
        """As `TorchFloats.part`."""
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        bias = None if self.bias is None else self.bias[rows]
        return TorchCodes(self.format, self.num_inputs, arrays, bias)

    def _centered(self, arrays: Mapping[str, Tensor]) -> Tensor:
        codes = arrays["codes"]
        if self.format.bits > 4:
            return codes
        halves = torch.stack((codes & 15, codes >> 4), dim=-1).reshape(len(codes), -1)
        halves = halves[:, : self.num_inputs]
        if self.format.codebook:
            return self.codebook[halves.long()]
        if "zero_points" in arrays:
            return halves.to(torch.int8) - self._per_input(arrays["zero_points"]).to(torch.int8)
        return halves.to(torch.int8) - self.format.zero_point

    def _per_group(self, numbers: Tensor, factors: Tensor | None) -> Tensor:
        if self.format.scale is ScaleKind.EXPONENT:  # the bits of an f32 are its exponent's
            return (numbers.to(torch.int32) << 23).view(torch.float32).reshape(len(numbers), -1)
        per_group = numbers.float().reshape(len(numbers), -1)
        if factors is None:
            return per_group
        groups_per_block = BLOCK // (self.format.group_size or BLOCK)
        repeated = factors.float().repeat_interleave(groups_per_block, dim=1)
        return per_group * repeated[:, : per_group.shape[1]]

    def _per_input(self, per_group: Tensor) -> Tensor:
        """[N, groups] -> [N, K], or [N, 1] if there is one group."""
        if self.format.group_size is None:
            return per_group
        return per_group.repeat_interleave(self.format.group_size, dim=1)[:, : self.num_inputs]


@dataclass(frozen=True)
class TorchExperts(Sequence[TorchMatrix]):
    """Matrices of one shape and format that follow each other in memory: those of a layer's experts.

    Args:
        together: all outputs of the first one, then those of the second one.
    """

    together: TorchFloats | TorchCodes
    num_experts: int

    @classmethod
    def of(cls, experts: Sequence["TorchWeight"]) -> "TorchExperts | None":
        """None: they differ in format or shape."""
        if not _are_alike(experts):
            return None
        first: Any = experts[0]
        every: Any = experts
        bias = None if first.bias is None else torch.cat([each.bias for each in every])
        if isinstance(first, TorchFloats):
            together = torch.cat([each.weight for each in every])
            return cls(TorchFloats(together, bias), len(experts))
        arrays = {name: torch.cat([each.arrays[name] for each in every]) for name in first.arrays}
        return cls(TorchCodes(first.format, first.num_inputs, arrays, bias), len(experts))

    @property
    def num_outputs(self) -> int:
        """Of an expert."""
        return self.together.shape[0] // self.num_experts

    def __len__(self) -> int:
        return self.num_experts

    def __getitem__(self, index: Any) -> Any:
        return self._apart[index]

    @cached_property
    def _apart(self) -> tuple[TorchMatrix, ...]:
        size = self.num_outputs
        starts = range(0, self.num_experts * size, size)
        return tuple(self.together.part(slice(start, start + size)) for start in starts)


def _are_alike(experts: Sequence[Any]) -> bool:
    first = experts[0]
    if not isinstance(first, TorchFloats | TorchCodes):
        return False
    if any(type(each) is not type(first) or each.shape != first.shape for each in experts):
        return False
    if isinstance(first, TorchFloats):
        return all(each.weight.dtype == first.weight.dtype for each in experts)
    return all(each.format == first.format for each in experts)


TorchWeight: TypeAlias = TorchMatrix | JoinedHandle
TorchStack: TypeAlias = Sequence[TorchWeight]
Quantize: TypeAlias = Callable[[npt.NDArray[Any], IntegerFormat], QuantizedMatrix]


class TorchWeights(Weights):
    """Copies each weight to the device when it is loaded.

    Args:
        quantize: as `Weights.quantize`, on the host.
    """

    def __init__(self, device: torch.device, quantize: Quantize = quantize_matrix) -> None:
        self._device = device
        self._quantize = quantize
        self._num_bytes = self._num_numbers = 0  # of matrices, since the last `finish`

    def uniform(
        self, weight: UniformMatrix, bias: npt.NDArray[Any] | None, rounds_activations: bool
    ) -> TorchMatrix:
        own_bias = None if bias is None else self.vector(bias)
        weight = in_arrays(weight)
        if isinstance(weight, QuantizedMatrix):
            self._count(sum(each.nbytes for each in weight.arrays.values()), weight.shape)
            arrays = {name: to_device(each, self._device) for name, each in weight.arrays.items()}
            return TorchCodes(weight.format, weight.num_inputs, arrays, own_bias)
        if weight.dtype not in TORCH_DTYPES or weight.dtype == np.float64:
            weight = weight.astype(np.float32)
        self._count(weight.nbytes, weight.shape)
        return TorchFloats(to_device(weight, self._device), own_bias)

    def stack(self, experts: Iterable[TorchWeight]) -> TorchStack:
        """A `TorchExperts`, if they are alike."""
        apart = tuple(experts)
        return TorchExperts.of(apart) or apart

    def _count(self, num_bytes: int, shape: tuple[int, ...]) -> None:
        self._num_bytes += num_bytes
        self._num_numbers += math.prod(shape)

    def vector(self, weight: npt.NDArray[Any]) -> Tensor:
        return to_device(np.asarray(weight, np.float32), self._device)

    def quantize(self, weight: npt.NDArray[Any], weight_format: IntegerFormat) -> QuantizedMatrix:
        return self._quantize(weight, weight_format)

    def finish(self) -> float:
        """Bytes of a number of a model's matrices, on average; the next matrices are another model's."""
        average = self._num_bytes / max(1, self._num_numbers)
        self._num_bytes = self._num_numbers = 0
        return average
