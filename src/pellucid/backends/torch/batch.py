"""A step's batch with its arrays on a device, made once for all layers."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pellucid.backends.ops import ForwardBatch, HostArray, IntArray
from pellucid.backends.rope_frequencies import frequency_rows
from pellucid.backends.torch.memory import indices, to_device
from pellucid.backends.torch.open_keys import StepGroups, groups_of_step
from pellucid.facts.model_config import RopeConfig

TILE = 16  # positions whose queries go through a product together; tiles start at multiples of it


class StepPlan(Protocol):
    """What a kernel plans for a step, as numbers on the device."""

    def for_rows(self, num_rows: int) -> "StepPlan":
        """The same plan for all steps of up to `num_rows` rows, of any requests, without numbers."""
        ...

    def numbers_of(self, batch: ForwardBatch) -> npt.NDArray[np.int32]:
        """The numbers of a step, of one shape for all steps of this plan."""
        ...

    def over(self, numbers: Tensor) -> "StepPlan":
        """The plan whose numbers are there."""
        ...


class QueryTiles(NamedTuple):
    """Some tiles of queries.

    Attributes:
        requests: [C].
        positions: [C, TILE] of the queries.
        ends: [C] keys before them are seen by a query of the tile.
        rows: [C, TILE] of the step; T where a position is not in the step.
        slots: [C] of the requests.
        starts: [C] positions of the first queries.
        first, last: positions of the first and the last query.
    """

    requests: Tensor
    positions: Tensor
    ends: Tensor
    rows: Tensor
    slots: Sequence[int]
    starts: Sequence[int]
    first: int
    last: int


@dataclass(frozen=True)
class TorchBatch(ForwardBatch):
    """A batch whose `slot_mapping` is on the device.

    Args:
        device: where ops compute.
    """

    device: torch.device

    @classmethod
    def of(cls, batch: ForwardBatch, device: torch.device) -> "TorchBatch":
        """`batch` on the device; itself if it is there."""
        if isinstance(batch, TorchBatch):
            return batch
        arrays = {field.name: getattr(batch, field.name) for field in fields(ForwardBatch)}
        slots: Any = indices(batch.slot_mapping, device)
        return cls(**{**arrays, "slot_mapping": slots}, device=device)

    def logits_batch(self) -> "TorchBatch":
        return TorchBatch.of(super().logits_batch(), self.device)

    @cached_property
    def tables(self) -> Tensor:
        """[G, B, blocks], one row after the other."""
        return indices(self.block_tables, self.device).contiguous()

    @cached_property
    def step_groups(self) -> StepGroups:
        """Of a format whose keys become codes in groups of positions."""
        return groups_of_step(self, self.device)

    @cached_property
    def plans(self) -> dict[Hashable, StepPlan]:
        """What kernels plan once for all layers, by what the plan depends on besides the batch."""
        return {}

    @cached_property
    def rotations(self) -> dict[RopeConfig, tuple[Tensor, Tensor]]:
        """Those that layers have asked for."""
        return {}

    def rotation(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, dim / 2], times the factors of `rope`."""
        if rope not in self.rotations:
            cos, sin = (
                to_device(turn, self.device)
                for turn in turns_of(self.positions, self.rope_lens, rope)
            )
            self.rotations[rope] = cos, sin
        return self.rotations[rope]

    def tiles(self, count: int) -> Iterator[QueryTiles]:
        """All tiles of queries, `count` at a time; the last ones are filled up with tiles that see no key."""
        for start in range(0, len(self._tiles[0]), count):
            arrays = [each[start : start + count] for each in self._tiles]
            requests, firsts, ends, rows = (
                _filled(each, count, value)
                for each, value in zip(arrays, (0, 0, 0, len(self.positions)), strict=True)
            )
            positions = firsts[:, None] + np.arange(TILE)
            yield QueryTiles(
                indices(requests, self.device),
                indices(positions, self.device),
                indices(ends, self.device),
                indices(rows, self.device),
                self.state_slots[requests].tolist(),
                firsts.tolist(),
                int(arrays[1].min()),
                int(arrays[2].max()) - 1,
            )

    @cached_property
    def _tiles(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Of each tile its request, its first position, the end of the keys that it sees, and its rows [TILE]."""
        requests, firsts, ends, rows = [], [], [], []
        starts = self.query_start.tolist()
        for request, seq_len in enumerate(self.seq_lens.tolist()):
            start, stop = starts[request], starts[request + 1]
            before = seq_len - (stop - start)
            for first in range(before // TILE * TILE, seq_len, TILE):
                own = start + first - before + np.arange(TILE)
                requests.append(request)
                firsts.append(first)
                ends.append(min(first + TILE, seq_len))
                rows.append(np.where((own >= start) & (own < stop), own, len(self.positions)))
        whole = (np.array(each, np.int64) for each in (requests, firsts, ends))
        return (*whole, np.array(rows, np.int64).reshape(-1, TILE))


def turns_of(
    positions: IntArray, lengths: IntArray, rope: RopeConfig
) -> tuple[HostArray, HostArray]:
    """As `TorchBatch.rotation`, f32 on the host.

    Args:
        positions: [T].
        lengths: [T], `ForwardBatch.rope_lens`.
    """
    inv_freq, factor = frequency_rows(rope, lengths, np.float32)
    angles = positions[:, None].astype(np.float32) * inv_freq
    factors: Any = np.float32(factor)
    if rope.growth is not None:
        periods = (positions // rope.growth.period)[:, None].astype(np.float32)
        factors = factors * (1 + np.float32(rope.growth.beta) * np.log1p(periods))
    cos, sin = (
        np.asarray(turn(angles) * factors, np.float32)[:, None] for turn in (np.cos, np.sin)
    )
    return cos, sin


def _filled(array: npt.NDArray[np.int64], count: int, value: int) -> npt.NDArray[np.int64]:
    filled = np.full((count, *array.shape[1:]), value, np.int64)
    filled[: len(array)] = array
    return filled
