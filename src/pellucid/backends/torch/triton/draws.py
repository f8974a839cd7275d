"""Launches the kernels of draws."""

import torch
import triton
from torch import Tensor

from pellucid.backends.torch.noise import NoiseKeys
from pellucid.backends.torch.race import DrawKernels
from pellucid.backends.torch.triton.kernels.draws import (
    race_kernel,
    weights_kernel,
    winner_kernel,
)

_WIDTH = 1024  # tokens of a program
_RACE_WIDTH = 512


def weights_of_rows(logits: Tensor, peaks: Tensor, sharpness: Tensor) -> Tensor:
    """As `race.weights_of_rows`."""
    num_rows, num_tokens = logits.shape
    weights = torch.empty_like(logits)
    width = min(_WIDTH, triton.next_power_of_2(num_tokens))
    weights_kernel[(num_rows, triton.cdiv(num_tokens, width))](
        *(weights, logits, peaks, sharpness.contiguous(), num_tokens),
        WIDTH=width,
        enable_fp_fusion=False,
    )
    return weights


def race(weights: Tensor, keys: NoiseKeys) -> Tensor:
    """As `race.race`."""
    num_rows, num_tokens = weights.shape
    width = min(_RACE_WIDTH, triton.next_power_of_2(num_tokens))
    num_parts = triton.cdiv(num_tokens, width)
    shape = num_rows, num_parts
    times = weights.new_empty(shape, dtype=torch.float64)
    winners = weights.new_empty(shape, dtype=torch.int32)
    tokens = weights.new_empty(num_rows, dtype=torch.int32)
    race_kernel[shape](
        *(times, winners, weights, *keys, num_tokens),
        WIDTH=width,
        enable_fp_fusion=False,
    )
    winner_kernel[(num_rows,)](
        *(tokens, times, winners, num_parts, num_tokens), PARTS=triton.next_power_of_2(num_parts)
    )
    return tokens.long()


DRAW_KERNELS = DrawKernels(weights_of_rows, race)
