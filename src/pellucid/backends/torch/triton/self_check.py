"""The check at start of the kernels in Triton: whether they give the numbers of plain PyTorch, and tiles of all sizes a
row the same bits."""

import warnings

import numpy as np
import torch

from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.ops import TorchOps
from pellucid.backends.torch.triton.ops import TritonOps, linear_tiles
from pellucid.backends.torch.weights import TorchFloats, TorchMatrix, TorchWeights

_SHAPE = 200, 2048  # outputs and inputs; the last tile of outputs is not full
_FORMATS = ("int8", "int4-zp")
_CLOSE = 1e-2  # of norms


def with_kernels(plain: TorchOps, shape: tuple[int, int] = _SHAPE) -> TorchOps:
    """The ops of `plain` with kernels, as far as these are right on its device: with tiles of all sizes, with one
    tile, or without kernels. A RuntimeWarning says which, unless it is the first.

    Args:
        shape: of the matrices that are tried.
    """
    arguments = plain.device, plain.tile, plain.attention, plain.num_together
    for has_one_tile in (False, True):
        ops = TritonOps(*arguments, has_one_tile=has_one_tile)
        try:
            is_right = kernels_are_right(ops, shape)
        except Exception as error:  # of Triton, its compiler, the driver
            _warn(f"kernels cannot be made ({error}): plain PyTorch computes, which is slower")
            return plain
        if is_right:
            if has_one_tile:
                _warn("tiles of several sizes give other bits: all steps use one, which is slower")
            return ops
    _warn(
        "kernels give other numbers than plain PyTorch, or a row other bits than alone: plain PyTorch computes, which"
        " is slower"
    )
    return plain


def _warn(message: str) -> None:
    warnings.warn(f"device='cuda': {message}", RuntimeWarning, stacklevel=3)


def kernels_are_right(ops: TritonOps, shape: tuple[int, int]) -> bool:
    """Whether rows have plain PyTorch's numbers within the rounding of bf16, and the same bits in steps of each tile,
    alone and at both ends of others."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape, np.float32)
    load = TorchWeights(ops.device)
    matrices: list[TorchMatrix] = [
        TorchFloats(to_device(weight, ops.device).to(torch.bfloat16), None),
        *(load.uniform(quantize_matrix(weight, FORMATS[each]), None, True) for each in _FORMATS),
    ]
    most = [tile.most_rows for tile in linear_tiles(None)[:-1]]
    counts = sorted({1, *most, *(each + 1 for each in most)})
    x = to_device(rng.standard_normal((2 * counts[-1], shape[1]), np.float32), ops.device)
    for matrix in matrices:
        every, plain = ops.linear(x, matrix), TorchOps.linear(ops, x, matrix)
        if not (every - plain).norm() <= _CLOSE * plain.norm():  # a NaN is not
            return False
        for count in counts:
            for start in (0, len(x) - count):
                own = slice(start, start + count)
                if not torch.equal(ops.linear(x[own], matrix), every[own]):
                    return False
    return True
