"""Weights in the layout of the native kernels: packed while the model loads."""

import mmap
import tempfile
from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.backends.base import ExpertReads, JoinedHandle, MatrixShape, Weights
from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.native import (
    Exchange,
    Kernels,
    LinearWeights,
    ThreadPool,
    WeightBuffer,
    WeightFile,
    WeightPacker,
    pack_block_weights,
    pack_weights,
    plan_weights,
    quantize_weights,
)
from pellucid.backends.ops import Matrix
from pellucid.backends.quantization.blocks import BlockMatrix
from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix, empty_matrix
from pellucid.backends.quantization.weights import check_scales
from pellucid.facts.formulas import PANEL_OUTPUTS

CpuStack: TypeAlias = Sequence[LinearWeights]  # of one format


class DividedWeights(Struct, frozen=True):
    """A matrix [N, K] of which each process has some rows.

    Args:
        own: the rows of this process, and their bias; joined where they have several formats.
        exchange: gives all processes what each has computed.
        starts: the first row of each rank, and N.
    """

    own: LinearWeights | JoinedHandle
    exchange: Exchange
    starts: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        return self.starts[-1]

    @property
    def parts(self) -> Sequence[LinearWeights]:
        """Of this process, one after the other."""
        return self.own.parts if isinstance(self.own, JoinedHandle) else [self.own]


CpuMatrix: TypeAlias = LinearWeights | DividedWeights

_FLOAT_FORMATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class CpuWeights(Weights):
    """Packs and quantizes matrices, on all threads. Vectors are f32 arrays.

    Args:
        kernels: choose the codes when a matrix is quantized.
        pool: the threads.
        quantize_activations: whether rows are rounded where they meet weights of fewer bits.
        maps_experts: whether experts go to a temporary file, of which the system keeps in memory what steps
            read.
        exchange: between the processes that have a share of the matrices each; None: this one has all.
    """

    takes_blocks = True

    def __init__(
        self,
        kernels: Kernels,
        pool: ThreadPool,
        quantize_activations: bool,
        maps_experts: bool,
        exchange: Exchange | None = None,
    ) -> None:
        self._exchange = exchange
        self.num_ranks = 1 if exchange is None else exchange.num_ranks
        self._kernels = kernels
        self._pool = pool
        self._activations = "native" if quantize_activations else "f32"
        # The memory of matrices that are being loaded, and the packer that fills it.
        self._memory: WeightBuffer | None = None
        self._packer: WeightPacker | None = None
        self._expert_file = _expert_file() if maps_experts else None

    def expect(self, num_bytes: int) -> None:
        """Until `finish`, matrices that are views of mapped files are packed on another thread."""
        self._memory, self._packer = WeightBuffer(num_bytes), WeightPacker(num_bytes)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of files that have not been packed yet."""
        return 0 if self._packer is None else self._packer.waiting_bytes

    def read(self) -> int:
        """Packs some of the waiting matrices. Returns the rest of `waiting_bytes`."""
        return 0 if self._packer is None else self._packer.help(self._pool)

    def finish(self) -> None:
        """Packs all waiting matrices."""
        while self.read():
            pass
        self._memory = self._packer = None  # the matrices keep their memory

    def own_rows(self, num_rows: int) -> slice:
        """As `Weights.own_rows`: whole panels; of a matrix with less than a panel for each process, all."""
        if (starts := self._starts(num_rows)) is None or self._exchange is None:
            return slice(0, num_rows)
        rank = self._exchange.rank
        return slice(starts[rank], starts[rank + 1])

    def shared(self, own: Matrix, num_rows: int) -> Matrix:
        if (starts := self._starts(num_rows)) is None or self._exchange is None:
            return own
        return DividedWeights(own, self._exchange, starts)

    def own_experts(self, num_experts: int) -> range:
        if (exchange := self._exchange) is None:
            return range(num_experts)
        starts = divide(num_experts, exchange.num_ranks)
        return range(starts[exchange.rank], starts[exchange.rank + 1])

    def _starts(self, num_rows: int) -> tuple[int, ...] | None:
        """How the rows of a matrix are divided; None: they are not."""
        if num_rows < PANEL_OUTPUTS * self.num_ranks or self.num_ranks == 1:
            return None
        return divide(num_rows, self.num_ranks, PANEL_OUTPUTS)

    def uniform(
        self, weight: UniformMatrix, bias: npt.NDArray[Any] | None, rounds_activations: bool
    ) -> LinearWeights:
        """`weight` [N, K] and its bias [N] as a handle, no value changed."""
        return self._pack(weight, bias, self._activations if rounds_activations else "f32")

    def expert(self, weight: UniformMatrix, bias: npt.NDArray[Any] | None = None) -> LinearWeights:
        """As `matrix`, in the file of experts if there is one."""
        return self._pack(weight, bias, self._activations, self._expert_file)

    @property
    def expert_reads(self) -> ExpertReads | None:
        if (file := self._expert_file) is None:
            return None
        return ExpertReads(file.num_bytes, file.bytes_read, file.bytes_found)

    def planned(
        self, parts: Sequence[MatrixShape], bias: bool, rounds_activations: bool = True
    ) -> LinearWeights | JoinedHandle:
        """Handles without memory."""
        activations = self._activations if rounds_activations else "f32"
        handles = tuple(
            plan_weights(
                each.format.name, each.num_outputs, each.num_inputs, bias, activations=activations
            )
            for each in parts
        )
        return handles[0] if len(handles) == 1 else JoinedHandle(handles)

    def vector(self, weight: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return np.ascontiguousarray(weight, np.float32)

    def _pack(
        self,
        weight: UniformMatrix,
        bias: npt.NDArray[Any] | None,
        activations: str,
        file: WeightFile | None = None,
    ) -> LinearWeights:
        own_bias = None if bias is None else self.vector(bias)
        memory = self._memory if file is None else file
        if isinstance(weight, BlockMatrix):
            may_wait = all(is_mapped(part.blocks) for part in weight.parts)
            return pack_block_weights(
                [(part.block_type, part.blocks, part.order) for part in weight.parts],
                bias=own_bias,
                activations=activations,
                pool=self._pool,
                memory=memory,
                packer=self._packer if may_wait else None,
            )
        parts: dict[str, Any] = {}
        if isinstance(weight, QuantizedMatrix):
            arrays = {name: np.ascontiguousarray(array) for name, array in weight.arrays.items()}
            name, rows = weight.format.name, arrays.pop("codes")
            parts = {**arrays, "num_inputs": weight.num_inputs}
            may_wait = all(map(is_mapped, weight.arrays.values()))
        else:
            name, rows = _float_bits(weight)
            may_wait = is_mapped(weight)
        return pack_weights(
            name,
            rows,
            **parts,
            bias=own_bias,
            activations=activations,
            pool=self._pool,
            memory=memory,
            packer=self._packer if may_wait else None,
        )

    def quantize(self, weight: npt.NDArray[Any], weight_format: IntegerFormat) -> QuantizedMatrix:
        """`weight` [N, K] of floats in `weight_format`, as `quantize_matrix` defines it."""
        matrix = empty_matrix(weight_format, *weight.shape)
        name, bits = _float_bits(weight)
        quantize_weights(
            weight_format.name,
            name,
            bits,
            matrix.codes,
            matrix.scales,
            matrix.zero_points,
            kernels=self._kernels,
            pool=self._pool,
        )
        check_scales(matrix, weight)
        return matrix


def divide(count: int, num_ranks: int, unit: int = 1) -> tuple[int, ...]:
    """Where the share of each rank of `count` items begins, and `count`. Shares are whole units, but for the last.

    Raises:
        ValueError: there are fewer units than ranks.
    """
    num_units = -(-count // unit)
    if num_units < num_ranks:
        raise ValueError(
            f"tensor_parallel_size={num_ranks}: {count} experts cannot be divided among so many processes"
        )
    starts = (num_units * rank // num_ranks * unit for rank in range(num_ranks))
    return *starts, count


def _expert_file() -> WeightFile:
    """In the directory of temporary files.

    Raises:
        ValueError: the directory takes none.
    """
    try:
        return WeightFile(tempfile.gettempdir())
    except (OSError, RuntimeError) as error:
        raise ValueError(f"experts='mapped': {error}; TMPDIR names another directory") from None


def _float_bits(weight: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """The native name of a float format, and a matrix in it."""
    if weight.dtype.name not in _FLOAT_FORMATS:
        weight = weight.astype(np.float32)
    bits = np.ascontiguousarray(weight)
    if bits.dtype == ml_dtypes.bfloat16:
        bits = bits.view(np.uint16)  # the buffer protocol has no name for it
    return _FLOAT_FORMATS[weight.dtype.name], bits


def is_mapped(array: npt.NDArray[Any]) -> bool:
    """Whether an array is a view of a mapped file: what it holds is there for as long as it is, and its
    pages can be given back at any time."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return isinstance(owner, mmap.mmap)
