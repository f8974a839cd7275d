"""The check at start: whether the device's products keep the rows of a step apart."""

import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.ops import TorchOps
from pellucid.backends.torch.weights import TorchFloats

# Outputs and inputs of products: narrow and wide ones, short and long sums, and those that fill no tile of a library.
_SHAPES = ((1, 256), (33, 1000), (512, 512), (2048, 1024), (256, 8192))


def checked_ops(ops: TorchOps) -> TorchOps:
    """`ops`, if they keep rows apart; else ops that multiply each row alone, and a RuntimeWarning says so."""
    if keeps_rows_apart(ops):
        return ops
    warnings.warn(
        f"device={ops.device.type!r}: in products of {ops.sizes.tile} rows a row has other bits than alone: each row is"
        " multiplied alone, which is slower",
        RuntimeWarning,
        stacklevel=2,
    )
    return TorchOps(ops.device, replace(ops.sizes, num_together=1))


def keeps_rows_apart(ops: TorchOps) -> bool:
    """Whether a row alone has the bits that it has at each place among others."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Tensor:
        return to_device(rng.standard_normal(shape, np.float32), ops.device)

    for shape in _SHAPES:
        weight, rows = TorchFloats(normal(*shape), None), normal(ops.sizes.tile, shape[1])
        together = ops.linear(rows, weight)
        if any(
            not torch.equal(ops.linear(rows[i : i + 1], weight)[0], together[i])
            for i in range(ops.sizes.tile)
        ):
            return False
    return True
