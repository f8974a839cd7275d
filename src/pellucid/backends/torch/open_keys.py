"""Keys of groups of positions that are not complete, in bf16 on a device: as `numpy.open_keys`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pellucid.backends.ops import ForwardBatch, IntArray
from pellucid.backends.torch.memory import indices
from pellucid.facts.kv_formats import GROUP_POSITIONS, OPEN_GROUPS, NumberFormat


class StepGroups(NamedTuple):
    """The groups of positions of which a step stores keys, in order of requests: N of them.

    Attributes:
        numbers: of each, by the request's slot and the group.
        rows: [T] where each key goes among N * 32 places.
        begun: groups that earlier steps have begun, and their place in slots: [2, M], see `OpenKeys.slots`.
        begun_numbers: [M] of these groups.
        kept, kept_numbers: likewise, of each request its latest groups.
        whole: [W] the numbers of the groups that are complete now.
        last_rows: [W] the rows of the step that complete them.
    """

    numbers: Mapping[tuple[int, int], int]
    rows: Tensor
    begun: Tensor
    begun_numbers: Tensor
    kept: Tensor
    kept_numbers: Tensor
    whole: Tensor
    last_rows: Tensor


def groups_of_step(batch: ForwardBatch, device: torch.device) -> StepGroups:
    """The groups of a step, planned once for all layers."""
    numbers: dict[tuple[int, int], int] = {}
    begun: list[tuple[int, int, int]] = []  # slot, place in it, number
    kept: list[tuple[int, int, int]] = []
    whole: list[tuple[int, int]] = []  # number, row
    rows: list[int] = []
    starts = batch.query_start.tolist()
    firsts = batch.positions[batch.query_start[:-1]].tolist()
    for row, end, slot, start in zip(
        starts[:-1], starts[1:], batch.state_slots.tolist(), firsts, strict=True
    ):
        stop = start + end - row
        first, last = start // GROUP_POSITIONS, (stop - 1) // GROUP_POSITIONS
        number = len(numbers)
        if start % GROUP_POSITIONS:
            begun.append((slot, first % OPEN_GROUPS, number))
        begin = number * GROUP_POSITIONS + start % GROUP_POSITIONS
        rows += range(begin, begin + end - row)
        for group in range(first, last + 1):
            own = numbers[slot, group] = len(numbers)
            if group > last - OPEN_GROUPS:
                kept.append((slot, group % OPEN_GROUPS, own))
            if (group + 1) * GROUP_POSITIONS <= stop:
                whole.append((own, row + (group + 1) * GROUP_POSITIONS - 1 - start))

    def columns(listed: Sequence[tuple[int, ...]], count: int) -> Tensor:
        return indices(np.array(listed, np.int64).reshape(-1, count).T, device)

    begun_columns, kept_columns = columns(begun, 3), columns(kept, 3)
    whole_columns = columns(whole, 2)
    return StepGroups(
        numbers,
        indices(np.array(rows, np.int64), device),
        begun_columns[:2],
        begun_columns[2],
        kept_columns[:2],
        kept_columns[2],
        whole_columns[0],
        whole_columns[1],
    )


@dataclass
class Area:
    """The keys of the groups of the latest step of a layer, in bf16: [N, 32, K, numbers]. Layers use an area one after
    another.

    Args:
        groups: of this step.
    """

    keys: Tensor | None = None
    groups: StepGroups | None = None


@dataclass(frozen=True)
class OpenKeys:
    """Of one layer.

    Args:
        slots: bf16 [slots, 2, 32, K, numbers]: group g of a sequence is in place g % 2.
        area: of this layer and others.
    """

    slots: Tensor
    area: Area = field(default_factory=Area)

    @classmethod
    def zeros(
        cls,
        number_format: NumberFormat,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        area: Area,
        device: torch.device,
    ) -> "OpenKeys":
        numbers = number_format.num_numbers(head_dim)
        shape = num_slots, OPEN_GROUPS, GROUP_POSITIONS, num_kv_heads, numbers
        return cls(torch.zeros(shape, dtype=torch.bfloat16, device=device), area)

    def store(self, k: Tensor, groups: StepGroups) -> Tensor:
        """Keeps the keys k [T, K, D] of a step. Returns those of the groups that are complete now,
        [W, 32, K, numbers]."""
        shape = len(groups.numbers), *self.slots.shape[2:]
        keys = self.slots.new_zeros(shape)
        keys[groups.begun_numbers] = self.slots[groups.begun[0], groups.begun[1]]
        padding = shape[-1] - k.shape[-1]
        rows = torch.nn.functional.pad(k.to(keys.dtype), (0, padding))
        keys.flatten(0, 1)[groups.rows] = rows
        self.slots[groups.kept[0], groups.kept[1]] = keys[groups.kept_numbers]
        self.area.keys, self.area.groups = keys, groups
        return keys[groups.whole]

    def own_groups(self, slots: Sequence[int], positions: Sequence[int]) -> Tensor:
        """The keys [C, 32, K, numbers] in f32 of the groups of positions in sequences of the latest step; of others,
        those of any group."""
        keys, groups = self.area.keys, self.area.groups
        assert keys is not None and groups is not None
        found = [
            groups.numbers.get((slot, position // GROUP_POSITIONS), 0)
            for slot, position in zip(slots, positions, strict=True)
        ]
        return keys[indices(np.array(found, np.int64), keys.device)].float()

    def first_groups(self, batch: ForwardBatch) -> IntArray:
        """Of each request of a batch [B] what the number of a group, as of the latest step, differs by from its place
        in `area.keys`."""
        assert self.area.groups is not None
        numbers = self.area.groups.numbers
        firsts = (batch.positions[batch.query_start[:-1]] // GROUP_POSITIONS).tolist()
        slots = batch.state_slots.tolist()
        found = zip(slots, firsts, strict=True)
        return np.array([numbers.get(each, 0) - each[1] for each in found], np.int64)
