"""Unpacks GGUF blocks natively, bit for bit as `matrix_from_blocks` does."""

from functools import cached_property

from pellucid.backends.native import (
    ThreadPool,
    block_types,
    blocks_are_finite,
    cpu_info,
    unpack_blocks,
)
from pellucid.backends.quantization.matrix import QuantizedMatrix, empty_matrix
from pellucid.loading.gguf_blocks import (
    Bytes,
    format_of_blocks,
    inputs_of_row,
    matrix_from_blocks,
)
from pellucid.loading.gguf_types import TensorKind as Type


class NativeBlocks:
    """A `BlockReader` on all cores; types that native code does not support are read by NumPy."""

    @cached_property
    def types(self) -> frozenset[str]:
        """That native code supports."""
        return frozenset(block_types())

    @cached_property
    def _pool(self) -> ThreadPool:
        return ThreadPool(cpu_info().num_threads)

    def matrix(self, rows: Bytes, block_type: str) -> QuantizedMatrix:
        """As `matrix_from_blocks`."""
        kind = Type[block_type]
        if block_type not in self.types:
            return matrix_from_blocks(rows, kind)
        num_inputs = inputs_of_row(rows.shape[1], kind)
        matrix = empty_matrix(format_of_blocks(kind), len(rows), num_inputs)
        unpack_blocks(block_type, rows, **matrix.arrays, pool=self._pool)
        return matrix

    def is_finite(self, rows: Bytes, block_type: str) -> bool:
        """Whether all floats are finite, of types that native code supports."""
        return blocks_are_finite(block_type, rows)
