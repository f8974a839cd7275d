"""Keys of groups that are not complete, in bf16, and those of the groups that the latest step stored."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pellucid.backends.ops import ForwardBatch, HostArray
from pellucid.facts.kv_formats import GROUP_POSITIONS, OPEN_GROUPS, NumberFormat


@dataclass(frozen=True)
class OpenKeys:
    """Of one layer.

    Args:
        slots: bf16 [slots, 2, 32, K, numbers]: group g of a sequence is in place g % 2.
        latest: keys [32, K, numbers] of every group that the latest step stored some of, by slot and group.
    """

    slots: npt.NDArray[Any]
    latest: dict[tuple[int, int], npt.NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def zeros(
        cls, number_format: NumberFormat, num_slots: int, num_kv_heads: int, head_dim: int
    ) -> "OpenKeys":
        numbers = number_format.num_numbers(head_dim)
        shape = num_slots, OPEN_GROUPS, GROUP_POSITIONS, num_kv_heads, numbers
        return cls(np.zeros(shape, ml_dtypes.bfloat16))

    def store(self, k: HostArray, batch: ForwardBatch) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Keeps the keys k [T, K, D] of a step.

        Yields:
            of each group that is complete now, the step's rows of it and its keys [32, K, D].
        """
        self.latest.clear()
        for first_row, end_row, slot in zip(
            batch.query_start[:-1].tolist(),
            batch.query_start[1:].tolist(),
            batch.state_slots.tolist(),
            strict=True,
        ):
            start = int(batch.positions[first_row])
            stop = start + end_row - first_row
            first, last = start // GROUP_POSITIONS, (stop - 1) // GROUP_POSITIONS
            earlier = self.slots[slot, first % OPEN_GROUPS].copy()
            for group in range(first, last + 1):
                begin = group * GROUP_POSITIONS  # of its positions
                keys = earlier if group == first else np.zeros_like(earlier)
                own = slice(max(start - begin, 0), min(stop - begin, GROUP_POSITIONS))
                row = first_row + begin + own.start - start
                rows = slice(row, row + own.stop - own.start)
                keys[own, :, : k.shape[-1]] = k[rows]
                self.latest[slot, group] = keys
                self.slots[slot, group % OPEN_GROUPS] = keys
                if own.stop == GROUP_POSITIONS:
                    yield rows, keys[..., : k.shape[-1]]
