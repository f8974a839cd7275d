"""A step's batch with its arrays on a device, made once for all layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pellucid.backends.ops import ForwardBatch
from pellucid.backends.rope_frequencies import frequency_rows
from pellucid.backends.torch.memory import indices, to_device
from pellucid.backends.torch.open_keys import StepGroups, groups_of_step
from pellucid.facts.model_config import RopeConfig

TILE = 16  # positions whose queries go through a product together; tiles start at multiples of it


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
        """[G, B, blocks]."""
        return indices(self.block_tables, self.device)

    @cached_property
    def step_groups(self) -> StepGroups:
        """Of a format whose keys become codes in groups of positions."""
        return groups_of_step(self, self.device)

    @cached_property
    def _rotations(self) -> dict[RopeConfig, tuple[Tensor, Tensor]]:
        return {}

    def rotation(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, dim / 2], times the factors of `rope`."""
        if rope not in self._rotations:
            self._rotations[rope] = self._rotation(rope)
        return self._rotations[rope]

    def _rotation(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        inv_freq, factor = frequency_rows(rope, self.rope_lens, np.float32)
        angles = self.positions[:, None].astype(np.float32) * inv_freq
        factors: Any = np.float32(factor)
        if rope.growth is not None:
            periods = (self.positions // rope.growth.period)[:, None].astype(np.float32)
            factors = factors * (1 + np.float32(rope.growth.beta) * np.log1p(periods))
        turns = (np.asarray(turn(angles) * factors, np.float32) for turn in (np.cos, np.sin))
        cos, sin = (to_device(turn, self.device)[:, None] for turn in turns)
        return cos, sin

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


def _filled(array: npt.NDArray[np.int64], count: int, value: int) -> npt.NDArray[np.int64]:
    filled = np.full((count, *array.shape[1:]), value, np.int64)
    filled[: len(array)] = array
    return filled
