"""FP8 with scales of blocks (DeepSeek, Qwen), of rows (fbgemm, llm-compressor) or of a matrix. Becomes bf16."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.foreign.arrays import FLOATS, Arrays, Matrices, modules_with


def fp8_matrices(checkpoint: Checkpoint, method: str, block: tuple[int, int] | None) -> Matrices:
    """weight F8_E4M3 [N, K] times weight_scale (or weight_scale_inv, which is the same) of the matrix, of each
    row [N, 1], or of each block [N / rows, K / columns]. Becomes bf16, which rounds each product by at most
    1/512 and takes twice the bytes of the file."""
    matrices = {}
    for scale in (".weight_scale", ".weight_scale_inv"):
        for arrays in modules_with(checkpoint, scale, method):
            num_outputs, num_inputs = arrays.shape(".weight", ("F8_E4M3",), 2)
            if block is None:
                rows = (num_outputs, 1), (num_outputs,), (1,), (), (1, 1)
                arrays.check(scale, FLOATS, *rows)
            else:
                blocks = -(-num_outputs // block[0]), -(-num_inputs // block[1])
                arrays.check(scale, FLOATS, blocks)

            def read(arrays: Arrays = arrays, scale: str = scale) -> UniformMatrix:
                return _scaled_floats(arrays.array(".weight"), arrays.array(scale), block)

            matrices[f"{arrays.module}.weight"] = arrays.matrix(
                (".weight", scale, ".input_scale", ".input_scale_ub", ".activation_scale"),
                (num_outputs, num_inputs),
                None,
                read,
            )
    return matrices


def _scaled_floats(
    weights: npt.NDArray[Any], scales: npt.NDArray[Any], block: tuple[int, int] | None
) -> npt.NDArray[Any]:
    """[N, K] in bf16, made of some rows at a time."""
    scales = scales.astype(np.float32)
    if block is None:
        block = weights.shape if scales.size == 1 else (1, weights.shape[1])
    scales = scales.reshape(-(-weights.shape[0] // block[0]), -1)
    floats = np.empty(weights.shape, ml_dtypes.bfloat16)
    step = min(block[0], 128)
    for start in range(0, weights.shape[0], step):
        of_inputs = np.repeat(scales[start // block[0]], block[1])[: weights.shape[1]]
        floats[start : start + step] = weights[start : start + step].astype(np.float32) * of_inputs
    return floats
