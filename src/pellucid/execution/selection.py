"""Selects tokens by rank without sorting the vocabulary."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
Keys: TypeAlias = npt.NDArray[np.floating[Any]]
Mask: TypeAlias = npt.NDArray[np.bool_]

# At this size or below, one sort costs less than further rounds of partitioning.
_SORTED_AT_MOST = 1024
_CHUNK = 64  # values whose largest stands for all of them
_SAMPLED = 64  # keys whose median is taken for the median of all


def largest(values: npt.NDArray[np.floating[Any]], count: int) -> Mask:
    """Mask [N] of the `count` largest of values [N], 0 < count <= N; of equal ones the first."""
    survivors = values
    if count * _CHUNK < len(values):
        # As many chunks have a peak of at least `least`: so much the count-th largest value has too.
        num_chunks = len(values) // _CHUNK
        peaks = values[: num_chunks * _CHUNK].reshape(num_chunks, _CHUNK).max(axis=1)
        least = np.partition(peaks, -count)[-count]
        survivors = values[values >= least]
    threshold = np.partition(survivors, -count)[-count]
    chosen: Mask = values > threshold
    ties = np.flatnonzero(values == threshold)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return chosen


def shortest_prefix(keys: Keys, weights: FloatArray, target: float) -> Mask:
    """Mask [N] of the fewest elements, taken by ascending key, whose weights reach `target`.

    Of equal keys the first are taken first. All are taken if the sum falls short of the target, as
    rounding can make it.

    Args:
        keys: [N], N >= 1.
        weights: [N], >= 0.
        target: sum of weights to reach, > 0.
    """
    threshold, missing = _last_key(keys, weights, target)
    chosen: Mask = keys < threshold
    ties = np.flatnonzero(keys == threshold)
    needed = np.searchsorted(np.cumsum(weights[ties]), missing) + 1
    chosen[ties[:needed]] = True
    return chosen


def _last_key(keys: Keys, weights: FloatArray, target: float) -> tuple[float, float]:
    """The largest key in the prefix, and the difference between `target` and the weights of smaller keys.

    Quickselect by weight: each round about halves what is undecided, so it is linear in N.
    """
    while len(keys) > _SORTED_AT_MOST:
        sample = keys[:: len(keys) // _SAMPLED]
        pivot = np.partition(sample, len(sample) // 2)[len(sample) // 2]
        below = keys < pivot
        below_weight = weights[below].sum()
        if below_weight >= target:
            keys, weights = keys[below], weights[below]
            continue
        above = keys > pivot
        missing = target - below_weight - weights[keys == pivot].sum()
        if missing <= 0 or not above.any():
            return float(pivot), float(target - below_weight)
        keys, weights, target = keys[above], weights[above], missing
    order = np.argsort(keys, kind="stable")
    reached = np.cumsum(weights[order])
    last = min(int(np.searchsorted(reached, target)), len(keys) - 1)
    threshold = keys[order[last]]
    return float(threshold), float(target - weights[keys < threshold].sum())
