"""Launches the kernel of products, over matrices of bf16 and of codes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from pellucid.backends.quantization.formats import BLOCK, IntegerFormat, ScaleKind
from pellucid.backends.torch.triton.kernels.linear import linear_kernel
from pellucid.backends.torch.triton.pending import ForProducts
from pellucid.backends.torch.triton.tiles import LinearTile
from pellucid.backends.torch.weights import TorchCodes, TorchFloats, TorchMatrix

# Inputs in a step of a sum: with a matrix of bf16, and of codes.
_NUMBERS, _CODES = 64, 128
_WORD_BITS = 32
_HAS_PTX = torch.version.hip is None and not triton.knobs.runtime.interpret

# Those that a format does not have are not read.
_ARRAYS = ("scales", "scale_factors", "minimums", "minimum_factors", "zero_points")

_SCALES = {
    ScaleKind.F32: "number",
    ScaleKind.F16: "number",
    ScaleKind.EXPONENT: "exponent",
    ScaleKind.PRODUCT: "product",
}


def linear_constants(weight_format: IntegerFormat | None) -> dict[str, Any]:
    """The constants of `linear_kernel` for a format; None: bf16."""
    if weight_format is None:
        constants = {"PLANES": 1, "GROUP": 0, "BLOCK": _NUMBERS, "SCALE": "none", "ZERO_POINT": 0}
        constants |= {"HAS_MINIMUMS": False, "HAS_CODEBOOK": False, "IN_PAIRS": False}
        constants["COLUMNS"] = _NUMBERS
        return constants | _codebook(())
    planes = _WORD_BITS // (4 if weight_format.bits == 4 else 8)
    group = (weight_format.group_size or 0) // planes
    words = _CODES // planes
    assert group == 0 or words % group == 0
    zero_point = 0 if weight_format.codebook else weight_format.zero_point
    return {
        "PLANES": planes,
        "GROUP": group,
        "BLOCK": BLOCK // planes,
        "SCALE": _SCALES[weight_format.scale],
        "ZERO_POINT": -1 if weight_format.has_zero_points else zero_point,
        "HAS_MINIMUMS": weight_format.has_minimums,
        "HAS_CODEBOOK": bool(weight_format.codebook),
        "IN_PAIRS": _HAS_PTX and not (weight_format.has_minimums or weight_format.codebook),
        "COLUMNS": words,
    } | _codebook(weight_format.codebook)


def _codebook(numbers: tuple[int, ...]) -> dict[str, Any]:
    """Sixteen numbers as four words; none: zeros."""
    words = np.array(numbers or (0,) * 16, np.int8).view("<i4").tolist()
    return {f"BOOK_{i}": word for i, word in enumerate(words)}


def options_of(tile: LinearTile) -> dict[str, Any]:
    """The arguments of a launch by which tiles differ."""
    return {
        "OUTPUTS": tile.outputs,
        "ROWS": tile.rows,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": False,
    }


def planes_of(x: Tensor, num_planes: int) -> Tensor:
    """Rows [T, K] in bf16 as `linear_kernel` reads them: [planes, T, K / planes]."""
    if isinstance(x, ForProducts) and not x.is_known:
        return x.rounded(num_planes)
    return x.to(torch.bfloat16).unflatten(1, (-1, num_planes)).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class LinearLaunch:
    """A matrix as the arguments of `linear_kernel`.

    Args:
        stored: bf16 [N, K], or words of codes [N, columns].
        arrays: of `QuantizedMatrix`, by name; empty: bf16.
    """

    stored: Tensor
    arrays: Mapping[str, Tensor]
    constants: Mapping[str, Any]

    @classmethod
    def of(cls, weight: TorchMatrix) -> "LinearLaunch | None":
        """None: the kernel does not read this format."""
        if isinstance(weight, TorchFloats) and weight.weight.dtype == torch.bfloat16:
            return cls(weight.weight, {}, linear_constants(None))
        if isinstance(weight, TorchCodes):
            codes = weight.arrays["codes"]
            if codes.shape[1] * 8 % _WORD_BITS:
                return None
            return cls(codes.view(torch.int32), weight.arrays, linear_constants(weight.format))
        return None

    @property
    def has_codes(self) -> bool:
        return bool(self.arrays)

    @property
    def num_outputs(self) -> int:
        return len(self.stored)

    def run(self, x: Tensor, tile: LinearTile) -> Tensor:
        """x [T, K] -> [T, N], f32."""
        num_rows = len(x)
        num_outputs, num_columns = self.stored.shape
        y = torch.empty((num_rows, num_outputs), device=self.stored.device)
        if num_rows == 0:
            return y
        # Programs of the same outputs are neighbours: they read the same weights at about the same time.
        grid = (triton.cdiv(num_rows, tile.rows), triton.cdiv(num_outputs, tile.outputs))
        linear_kernel[grid](
            *(y, planes_of(x, self.constants["PLANES"]), *self.matrix),
            *(num_rows, num_outputs, num_columns, *self.widths),
            **self.constants,
            **options_of(tile),
        )
        return y

    @property
    def matrix(self) -> tuple[Tensor, ...]:
        """The stored matrix and its arrays, as `linear_kernel` takes them."""
        return self.stored, *(self.arrays.get(name, self.stored) for name in _ARRAYS)

    @property
    def widths(self) -> tuple[int, int]:
        """Scales and their factors of an output."""
        return self._width("scales"), self._width("scale_factors")

    def _width(self, name: str) -> int:
        array = self.arrays.get(name)
        return array.shape[1] if array is not None and array.dim() > 1 else 1
