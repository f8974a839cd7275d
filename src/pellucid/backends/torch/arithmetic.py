"""Arithmetic on tensors whose bits depend on an element's own inputs alone, whatever the shape around it.

`torch.sum`, `mean` and `softmax` add in an order that follows from the whole shape, and `torch.sigmoid` rounds the last
elements of a tensor otherwise than those before. What is used here is elementwise and alike for every element:
tests/device/test_torch_row_invariance.py watches it.
"""

import math

import torch
from torch import Tensor

from pellucid.facts.model_config import Activation

_SWISH_LIMIT = 7.0


def ordered_sum(x: Tensor, dim: int = -1) -> Tensor:
    """The sum over an axis, which is kept: its second half is added to its first one until one element is left."""
    while (size := x.shape[dim]) > 1:
        half = (size + 1) // 2
        first, second = x.narrow(dim, 0, half), x.narrow(dim, half, size - half)
        if size % 2:  # the middle has no partner
            first = first.clone()
            first.narrow(dim, 0, size - half).add_(second)
            x = first
        else:
            x = first + second
    return x


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), with an exponential that cannot overflow."""
    decay = torch.exp(-x.abs())
    return torch.where(x < 0, decay, torch.ones_like(decay)) / (1 + decay)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), with an exponential that cannot overflow."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def softmax(x: Tensor) -> Tensor:
    """Over the last axis."""
    powers = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return powers / ordered_sum(powers)


def unit(x: Tensor) -> Tensor:
    """x / sqrt(sum of squares + 1e-6) over the last axis."""
    return x / torch.sqrt(ordered_sum(x * x) + 1e-6)


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """softcap * tanh(scores / softcap)."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """As `Ops.activate`."""
    match activation:
        case "silu":
            return x * sigmoid(x)
        case "gelu":
            return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
        case "gelu_tanh":  # Hendrycks, Gimpel 2016
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
            return 0.5 * x * (1 + torch.tanh(inner))
        case "clamped_swish":
            gate = x.clamp(max=_SWISH_LIMIT)
            return gate * sigmoid(1.702 * gate)


def gated_activate(gate_up: Tensor, activation: Activation) -> Tensor:
    """As `Ops.gated_activate`."""
    half = gate_up.shape[1] // 2
    up = gate_up[:, half:]
    if activation == "clamped_swish":
        up = up.clamp(-_SWISH_LIMIT, _SWISH_LIMIT) + 1
    return activate(gate_up[:, :half], activation) * up
