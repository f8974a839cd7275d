"""NVFP4 (NVIDIA's modelopt): codes of 4 bits with an FP8 scale for 16 inputs and one for the matrix. Becomes bf16."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.formats import E2M1, SMALL_GROUP
from pellucid.loading.foreign.arrays import Arrays
from pellucid.loading.matrix_checkpoint import StoredMatrix


def nvfp4_matrix(arrays: Arrays) -> StoredMatrix:
    """weight U8 [N, K / 2], the even input in the low half of a byte; weight_scale F8_E4M3 [N, K / 16] and
    weight_scale_2 F32 of the matrix. Becomes bf16, which rounds each product by at most 1/512 and takes nearly
    four times the bytes of the file."""
    num_outputs, num_bytes = arrays.shape(".weight", ("U8",), 2)
    num_inputs = 2 * num_bytes
    arrays.check(".weight_scale_2", ("F32",), (), (1,))
    if num_inputs % SMALL_GROUP:
        raise arrays.error(".weight", f"rows of whole groups of {SMALL_GROUP} inputs")
    arrays.check(".weight_scale", ("F8_E4M3",), (num_outputs, num_inputs // SMALL_GROUP))

    def read() -> UniformMatrix:
        scale = arrays.array(".weight_scale_2").reshape(-1)[0]
        return _floats(arrays.array(".weight"), arrays.array(".weight_scale"), scale)

    suffixes = (".weight", ".weight_scale", ".weight_scale_2", ".input_scale")
    return arrays.matrix(suffixes, (num_outputs, num_inputs), None, read)


def _floats(
    codes: npt.NDArray[np.uint8], scales: npt.NDArray[Any], scale: np.float32
) -> npt.NDArray[Any]:
    """[N, K] in bf16."""
    numbers = np.array(E2M1, np.float32) / 2  # the table has doubled numbers
    floats = np.empty((codes.shape[0], 2 * codes.shape[1]), ml_dtypes.bfloat16)
    for row, (own_codes, own_scales) in enumerate(zip(codes, scales, strict=True)):
        halves = np.stack([own_codes & 15, own_codes >> 4], axis=1).reshape(-1, SMALL_GROUP)
        of_groups = own_scales.astype(np.float32)[:, None] * scale
        floats[row] = (numbers[halves] * of_groups).reshape(-1)
    return floats
