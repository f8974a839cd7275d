"""Unpacks GGUF blocks natively, bit for bit as `matrix_from_blocks` does."""

from pellucid.backends.native import ThreadPool, block_types, cpu_info, unpack_blocks
from pellucid.backends.quantization.matrix import QuantizedMatrix, empty_matrix
from pellucid.loading.gguf_blocks import (
    Bytes,
    format_of_blocks,
    inputs_of_row,
    matrix_from_blocks,
)
from pellucid.loading.gguf_types import TensorKind as Type


class NativeBlocks:
    """Reads blocks on all cores; types that native code does not support are read by NumPy."""

    def __init__(self) -> None:
        self._pool = ThreadPool(cpu_info().num_threads)
        self._types = frozenset(block_types())

    def matrix(self, rows: Bytes, block_type: Type) -> QuantizedMatrix:
        """As `matrix_from_blocks`."""
        if block_type.name not in self._types:
            return matrix_from_blocks(rows, block_type)
        num_inputs = inputs_of_row(rows.shape[1], block_type)
        matrix = empty_matrix(format_of_blocks(block_type), len(rows), num_inputs)
        unpack_blocks(block_type.name, rows, **matrix.arrays, pool=self._pool)
        return matrix
