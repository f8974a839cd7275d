"""A weight matrix as blocks of a file: codes and scales side by side, as GGUF's quantized types have them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix, concatenate_rows


class BlockReader(Protocol):
    """Reads blocks [N, bytes of a row] of a type that a file format names."""

    def matrix(self, rows: npt.NDArray[np.uint8], block_type: str) -> QuantizedMatrix:
        """What they store."""
        ...

    def is_finite(self, rows: npt.NDArray[np.uint8], block_type: str) -> bool:
        """Whether all floats in them are finite."""
        ...


@dataclass(frozen=True)
class BlockRows:
    """Rows of blocks.

    Args:
        block_type: by its name in the GGUF specification.
        blocks: uint8 [stored rows, bytes of a row].
        order: int64 [rows], which of the stored rows; None: all.
    """

    block_type: str
    blocks: npt.NDArray[np.uint8]
    order: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.blocks if self.order is None else self.order)

    def rows(self, index: Any) -> "BlockRows":
        """The rows that `index` selects, a slice or an array of row numbers."""
        if self.order is None and isinstance(index, slice) and index.step in (None, 1):
            return replace(self, blocks=self.blocks[index])
        order = np.arange(len(self.blocks)) if self.order is None else self.order
        return replace(self, order=np.ascontiguousarray(order[index], np.int64))

    @property
    def ordered(self) -> npt.NDArray[np.uint8]:
        """[rows, bytes of a row]."""
        return self.blocks if self.order is None else self.blocks[self.order]


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix [N, K] whose numbers a backend may read out of the blocks itself.

    Args:
        format: of all parts.
        num_inputs: K.
        parts: whose rows are the matrix's, one after the other.
        reader: of the blocks.
    """

    format: IntegerFormat
    num_inputs: int
    parts: tuple[BlockRows, ...]
    reader: BlockReader

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return sum(map(len, self.parts)), self.num_inputs

    @property
    def num_bytes(self) -> int:
        """Of the arrays of `unpacked`."""
        return self.format.num_bytes(*self.shape)

    @cached_property
    def is_finite(self) -> bool:
        """Whether all scales, minimums and factors are."""
        return all(self.reader.is_finite(part.blocks, part.block_type) for part in self.parts)

    def rows(self, index: Any) -> "BlockMatrix | QuantizedMatrix":
        """The rows that `index` selects, a slice or an array of row numbers."""
        if len(self.parts) > 1:
            return self.unpacked().rows(index)
        return replace(self, parts=(self.parts[0].rows(index),))

    def unpacked(self) -> QuantizedMatrix:
        """The same numbers in arrays."""
        return concatenate_rows(
            [self.reader.matrix(part.ordered, part.block_type) for part in self.parts]
        )

    def dequantize(self) -> npt.NDArray[np.float32]:
        """As `QuantizedMatrix.dequantize`."""
        return self.unpacked().dequantize()


def concatenate_blocks(matrices: Sequence[BlockMatrix]) -> BlockMatrix:
    """The rows of matrices in one format, one after the other."""
    first, *others = matrices
    assert all(matrix.format == first.format for matrix in others)
    return replace(first, parts=tuple(part for matrix in matrices for part in matrix.parts))
