"""FP8 with scales of blocks (DeepSeek, Qwen), of rows (fbgemm, llm-compressor) or of a matrix. Becomes bf16."""

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.foreign.arrays import FLOATS, Arrays, matrices_with
from pellucid.loading.matrix_checkpoint import Matrices, StoredMatrix

_MAX_ROWS = 128


def fp8_matrices(checkpoint: Checkpoint, method: str, block: tuple[int, int] | None) -> Matrices:
    """Those of both names of scales, and no F8_E4M3 without one."""
    scales = (".weight_scale", ".weight_scale_inv")
    finders = (matrices_with(each, method, partial(_fp8_matrix, each, block)) for each in scales)
    matrices = {name: each for find in finders for name, each in find(checkpoint).items()}
    for name in checkpoint:
        if checkpoint.info(name).dtype == "F8_E4M3" and name not in matrices:
            raise ValueError(
                f"{checkpoint.path(name)}: tensor {name} is F8_E4M3 and has no scale: {method} has one for each"
            )
    return matrices


def _fp8_matrix(scale: str, block: tuple[int, int] | None, arrays: Arrays) -> StoredMatrix:
    """weight F8_E4M3 [N, K] times weight_scale (or weight_scale_inv, which is the same) of the matrix, of each
    row [N, 1], or of each block [N / rows, K / columns]. Becomes bf16, which rounds each product by at most
    1/512 and takes twice the bytes of the file."""
    num_outputs, num_inputs = shape = arrays.shape(".weight", ("F8_E4M3",), 2)
    if block is None:
        arrays.check(scale, FLOATS, (num_outputs, 1), (num_outputs,), (1,), (), (1, 1))
    else:
        arrays.check(scale, FLOATS, (-(-num_outputs // block[0]), -(-num_inputs // block[1])))

    def read() -> UniformMatrix:
        return _scaled_floats(arrays.array(".weight"), arrays.array(scale), block)

    suffixes = (".weight", scale, ".input_scale", ".input_scale_ub", ".activation_scale")
    return arrays.matrix(suffixes, shape, None, read)


def _scaled_floats(
    weights: npt.NDArray[Any], scales: npt.NDArray[Any], block: tuple[int, int] | None
) -> npt.NDArray[Any]:
    """[N, K] in bf16."""
    scales = scales.astype(np.float32)
    num_outputs, num_inputs = weights.shape
    if block is None:
        block = weights.shape if scales.size == 1 else (1, num_inputs)
    rows, columns = min(block[0], num_outputs), min(block[1], num_inputs)
    scales = scales.reshape(-(-num_outputs // rows), -1)
    floats = np.empty(weights.shape, ml_dtypes.bfloat16)
    for index, of_block in enumerate(scales):
        of_inputs = np.repeat(of_block, columns)[:num_inputs]
        end = min((index + 1) * rows, num_outputs)
        # Some rows at a time, so that the products in f32 take little memory.
        for start in range(index * rows, end, _MAX_ROWS):
            part = slice(start, min(start + _MAX_ROWS, end))
            floats[part] = weights[part].astype(np.float32) * of_inputs
    return floats
