"""Launches the kernels of experts."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from pellucid.backends.torch.triton.kernels.experts import (
    count_kernel,
    grouped_linear_kernel,
    place_kernel,
    sum_kernel,
)
from pellucid.backends.torch.triton.linear import LinearLaunch, options_of, planes_of
from pellucid.backends.torch.triton.rows import Gated
from pellucid.backends.torch.triton.tiles import LinearTile
from pellucid.backends.torch.weights import TorchExperts, TorchStack
from pellucid.facts.model_config import Activation

_ROWS = 128  # whose experts a program looks at together
_WIDTH = 512  # numbers of a row that a program adds up


class ExpertSlots(NamedTuple):
    """The used pairs of rows and experts of a step, in order of experts.

    Attributes:
        by_row: int32 [T, E], of pairs that are used.
        sources: int32 [slots]: the row of each.
        tiles: int32 [tiles, 3], as of `grouped_linear_kernel`.
    """

    by_row: Tensor
    sources: Tensor
    tiles: Tensor

    @classmethod
    def of(cls, weights: Tensor, num_chosen: int, tile_rows: int) -> "ExpertSlots":
        """Arrays of sizes that follow from those of the arguments.

        Args:
            weights: f32 [T, E], of which at most `num_chosen` of a row are not 0.
        """
        num_rows, num_experts = weights.shape
        num_slots = num_rows * num_chosen
        # Each expert has at most one tile that is not full.
        num_tiles = num_slots // tile_rows + min(num_experts, num_slots)
        counts, by_row, sources = (
            weights.new_empty(shape, dtype=torch.int32)
            for shape in (num_experts, (num_rows, num_experts), num_slots)
        )
        tiles = weights.new_zeros((num_tiles, 3), dtype=torch.int32)
        sizes = num_rows, num_experts
        count_kernel[(num_experts,)](counts, weights, *sizes, ROWS=_ROWS)
        place_kernel[(num_experts,)](
            *(by_row, sources, tiles, counts, weights, *sizes),
            EXPERTS=triton.next_power_of_2(num_experts),
            ROWS=_ROWS,
            TILE=tile_rows,
        )
        return cls(by_row, sources, tiles)


class _Grouped(NamedTuple):
    """The matrices of a layer's experts as the arguments of `grouped_linear_kernel`."""

    every: LinearLaunch
    num_outputs: int
    biases: Tensor | None

    @classmethod
    def of(cls, stack: TorchStack) -> "_Grouped | None":
        """None: the kernel does not read this format, or experts differ in it."""
        if not isinstance(stack, TorchExperts):
            return None
        every = LinearLaunch.of(stack.together)
        if every is None:
            return None
        return cls(every, stack.num_outputs, stack.together.bias)

    def run(
        self, y: Tensor, x: Tensor, slots: ExpertSlots, tile: LinearTile, has_sources: bool
    ) -> None:
        """Writes products into y [slots, numbers], of which the first ones.

        Args:
            x: of each row if `has_sources`, else of each slot.
        """
        every, constants = self.every, self.every.constants
        sources, tiles = slots.sources, slots.tiles
        biases = sources if self.biases is None else self.biases  # what is not there is not read
        grouped_linear_kernel[(len(tiles), triton.cdiv(self.num_outputs, tile.outputs))](
            *(y, planes_of(x, constants["PLANES"]), *every.matrix, biases, sources, tiles),
            *(y.stride(0), len(x), self.num_outputs, every.stored.shape[1], *every.widths),
            HAS_SOURCES=has_sources,
            HAS_BIASES=self.biases is not None,
            **constants,
            **options_of(tile),
        )


class GroupedExperts(NamedTuple):
    """The experts of a layer, whose rows are grouped on the device."""

    gate: _Grouped
    up: _Grouped
    down: _Grouped

    @classmethod
    def of(cls, gate: TorchStack, up: TorchStack, down: TorchStack) -> "GroupedExperts | None":
        """None: the kernel does not read all of them."""
        own_gate, own_up, own_down = (_Grouped.of(each) for each in (gate, up, down))
        if own_gate is None or own_up is None or own_down is None:
            return None
        return cls(own_gate, own_up, own_down)

    @property
    def has_codes(self) -> bool:
        return any(each.every.has_codes for each in self)

    def num_outputs(self, num_slots: int) -> int:
        """Of a product, of all experts that so many slots can use."""
        num_experts = len(self.gate.every.stored) // self.gate.num_outputs
        return self.gate.num_outputs * min(num_experts, num_slots)

    def run(
        self,
        x: Tensor,
        weights: Tensor,
        num_chosen: int,
        activation: Activation,
        tile: LinearTile,
    ) -> Tensor:
        """As `Ops.expert_mlp`."""
        weights = weights.contiguous()
        slots = ExpertSlots.of(weights, num_chosen, tile.rows)
        width = self.gate.num_outputs
        gate_up = weights.new_empty((len(slots.sources), 2 * width))
        self.gate.run(gate_up, x, slots, tile, has_sources=True)
        self.up.run(gate_up[:, width:], x, slots, tile, has_sources=True)
        inner = Gated(gate_up, activation)
        outputs = weights.new_empty((len(inner), x.shape[1]))
        self.down.run(outputs, inner, slots, tile, has_sources=False)
        return _summed(outputs, slots, weights, num_chosen)


def _summed(x: Tensor, slots: ExpertSlots, weights: Tensor, num_chosen: int) -> Tensor:
    """Of each row the sum over its experts of a weight times an output x [slots, M]: [T, M]."""
    (num_rows, num_experts), num_numbers = weights.shape, x.shape[1]
    y = x.new_empty((num_rows, num_numbers))
    width = min(_WIDTH, triton.next_power_of_2(num_numbers))
    sum_kernel[(num_rows, triton.cdiv(num_numbers, width))](
        *(y, x, slots.by_row, weights, num_numbers, num_experts),
        EXPERTS=triton.next_power_of_2(num_experts),
        NUM_CHOSEN=num_chosen,
        WIDTH=width,
        enable_fp_fusion=False,
    )
    return y
