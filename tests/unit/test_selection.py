"""Selecting tokens by rank, compared with a full sort."""

import numpy as np
import pytest

from pellucid.execution.selection import largest, shortest_prefix


def sorted_prefix(keys: np.ndarray, weights: np.ndarray, target: float) -> list[int]:
    taken, reached = [], 0.0
    for index in sorted(range(len(keys)), key=lambda index: (keys[index], index)):
        if reached >= target:
            break
        taken.append(index)
        reached += weights[index]
    return sorted(taken)


# Whole numbers as keys give ties; as weights they make every sum exact.
SHAPES = [(1, 1), (7, 3), (1_000, 50), (5_000, 20), (5_000, 10**6), (20_000, 2)]


@pytest.mark.parametrize(("size", "num_values"), SHAPES)
@pytest.mark.parametrize("share", [1e-9, 0.01, 0.3, 0.5, 0.95, 1.0])
def test_shortest_prefix_is_that_of_a_stable_sort(size: int, num_values: int, share: float) -> None:
    rng = np.random.default_rng(size + num_values)
    keys = rng.integers(num_values, size=size).astype(np.float64)
    weights = rng.integers(1, 10, size=size).astype(np.float64)
    target = share * weights.sum()
    mask = shortest_prefix(keys, weights, target)
    assert np.flatnonzero(mask).tolist() == sorted_prefix(keys, weights, target)


@pytest.mark.parametrize("size", [3, 5_000])
def test_everything_is_taken_if_the_weights_fall_short(size: int) -> None:
    keys = np.arange(size, dtype=np.float64)
    assert shortest_prefix(keys, np.ones(size), size + 0.5).all()


@pytest.mark.parametrize("size", [5_000])
def test_keys_that_defeat_the_sampled_pivot_only_cost_time(size: int) -> None:
    keys = np.where(np.arange(size) % (size // 64) == 0, 1.0, 0.0)
    weights = np.ones(size)
    for target in (1.0, size - 70.0, size - keys.sum(), size - 3.0):
        expected = sorted_prefix(keys, weights, target)
        assert np.flatnonzero(shortest_prefix(keys, weights, target)).tolist() == expected


@pytest.mark.parametrize("rising", [1, -1])
def test_each_round_about_halves_what_is_undecided(
    rising: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, partition = [], np.partition
    monkeypatch.setattr(np, "partition", lambda x, *at: sizes.append(len(x)) or partition(x, *at))
    keys = np.arange(1 << 16)[::rising].astype(np.float64)
    assert shortest_prefix(keys, np.ones(1 << 16), 7.0).sum() == 7
    assert 5 <= len(sizes) <= 8 and max(sizes) <= 128
    sizes.clear()
    assert largest(keys, 9).sum() == 9
    assert [size < 1025 for size in sizes] == [
        True,
        True,
    ]  # peaks of chunks, then what reaches the least of them


@pytest.mark.parametrize(("size", "num_values"), SHAPES)
def test_largest_prefers_the_first_of_equals(size: int, num_values: int) -> None:
    values = np.random.default_rng(size).integers(num_values, size=size).astype(np.float32)
    order = sorted(range(size), key=lambda index: (-values[index], index))
    for count in {1, min(10, size), size // 100 + 1, size // 2 + 1, size}:
        assert np.flatnonzero(largest(values, count)).tolist() == sorted(order[:count])
