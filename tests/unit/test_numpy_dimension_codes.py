"""Keys in codes of 4 bits by dimension, compared with their definition."""

import ml_dtypes
import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.numpy.dimension_codes import DimensionCodes, quantize_groups, restore_rows
from pellucid.backends.numpy.kv_codes import quantize_rows
from pellucid.backends.numpy.kv_codes import restore_rows as restore_values
from pellucid.facts.kv_formats import KV_FORMATS
from support.attention_cases import (
    AttentionCase,
    config_of,
    dense_attention,
    paged_attention_in_steps,
)
from support.batches import Share, forward_batch
from support.block_moves import SHAPE

KEYS, VALUES = KV_FORMATS["int4"].halves


def normal(*shape: int) -> np.ndarray:
    return in_bf16(np.random.default_rng(1).standard_normal(shape))


def in_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def restored(x: np.ndarray) -> np.ndarray:
    """Groups [G, 32, K, D] as they come back."""
    codes, *factors = quantize_groups(x, KEYS.num_numbers(x.shape[-1]))
    scales, minimums = (np.repeat(each[:, None], 32, axis=1) for each in factors)
    return restore_rows(codes, scales, minimums, x.shape[-1])


@pytest.mark.parametrize("head_dim", [7, 40, 64])
def test_a_dimension_is_off_by_half_of_its_own_step(head_dim: int) -> None:
    x = normal(5, 32, 2, head_dim)
    x[:, :, 1, 3] = in_bf16(10 * x[:, :, 1, 3] + 1000)
    codes, scales, minimums = quantize_groups(x, KEYS.num_numbers(head_dim))
    assert codes[..., :head_dim].min() == 0 and codes.max() == 15
    steps = scales[..., :head_dim].astype(np.float32)
    assert (minimums[..., :head_dim] == x.min(axis=1)).all()
    spread = x.max(axis=1) - x.min(axis=1)
    assert (steps * 15 >= spread * (1 - 1e-6)).all() and (steps * 15 <= spread * 1.008).all()
    assert (np.abs(restored(x) - x) <= 0.501 * steps[:, None] + 1e-4 * np.abs(x)).all()


def test_keys_that_do_not_differ_come_back_exactly() -> None:
    x = np.broadcast_to(normal(3, 1, 2, 40), (3, 32, 2, 40)).copy()
    x[:, ::2] += np.float32(2.0**-110) * (x[:, ::2] == 0)
    assert (restored(x) == x).all()
    x[:] = np.linspace(0, 2.0**-100, 32, dtype=np.float32)[:, None, None]  # just enough to differ
    assert (restored(x)[:, 0] == 0).all() and (restored(x)[:, -1] > 0).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_seen_in_its_dimension(bad: float) -> None:
    x = normal(2, 32, 2, 40)
    x[1, 7, 0, 33] = x[0, :, 1, 5] = bad  # also keys whose difference is not a number
    back = restored(x)
    assert np.isnan(back[1, :, 0, 33]).all() and np.isnan(back[0, :, 1, 5]).all()
    assert np.isfinite(back).sum() == back.size - 2 * 32


def test_slots_of_blocks_have_the_factors_of_their_group() -> None:
    rows = DimensionCodes.zeros(KEYS, 96, 2, 40)
    x = normal(2, 32, 2, 40) * np.float32([[[[1]]], [[[100]]]])
    rows.write(np.r_[64:96, 0:32], x.reshape(64, 2, 40))
    assert (rows.read(np.r_[0:32]) == restored(x)[1]).all()
    assert (rows.read(np.array([70, 3])) == [restored(x)[0, 6], restored(x)[1, 3]]).all()
    # What a block held before may be anything.
    rows.codes[:], rows.factors[:, 0], rows.factors[:, 1] = 0xF0, 3e38, -np.inf
    assert np.isnan(rows.read(np.array([5]))[..., 1::2]).all()
    with pytest.raises(ValueError, match="block_size=48: must be a multiple of 32"):
        DimensionCodes.zeros(KEYS, 48, 2, 40)


def test_a_query_reads_its_own_group_in_bf16_and_earlier_ones_as_codes() -> None:
    case = AttentionCase.random(3, (75,), 4, 2, 64)
    ((q, k, v),) = case.requests
    k = in_bf16(k)
    v = restore_values(*quantize_rows(v, VALUES), VALUES, 64)
    (found,) = paged_attention_in_steps(NumpyBackend(), case, [[(0, 0, 75)]], 32, "int4")
    codes = restored(k[:64].reshape(2, 32, 2, 64)).reshape(64, 2, 64)
    for position in (0, 20, 31, 32, 63, 70):
        first = position // 32 * 32
        keys = np.concatenate([codes[:first], k[first:]])
        rows = (each[: position + 1] for each in (q, keys, v))
        assert np.abs(found[position] - dense_attention(*rows, 0.35)[-1]).max() < 1e-5


@pytest.mark.parametrize("window", [None, 20, 40])
def test_steps_of_any_size_give_the_same_bits(window: int | None) -> None:
    case = AttentionCase.random(4, (200, 90), 4, 2, 40)
    options = {"block_size": 64, "kv_dtype": "int4", "sliding_window": window}
    whole = paged_attention_in_steps(NumpyBackend(), case, [[(0, 0, 200), (1, 0, 90)]], **options)
    steps = [[(1, 0, 31)], [(0, 0, 33), (1, 31, 32)], [(0, 33, 170)], [(1, 32, 90), (0, 170, 171)]]
    steps += [[(0, p, p + 1)] for p in range(171, 200)]
    for own, expected in zip(
        paged_attention_in_steps(NumpyBackend(), case, steps, **options), whole, strict=True
    ):
        assert (own == expected).all()


def test_positions_that_are_stored_again_count() -> None:
    """As after wrong drafts, which completed a group."""
    first, second = (AttentionCase.random(seed, (80,), 4, 2, 40) for seed in (5, 6))
    ((q, k, v),), ((_, other_k, other_v),) = first.requests, second.requests
    wrong = [np.concatenate([good[:50], bad[50:]]) for good, bad in ((k, other_k), (v, other_v))]
    backend, halves = NumpyBackend(), []
    for drafts in ((k, v), wrong):
        layer = backend.make_kv_cache(config_of(first), 2, 64, "int4").layers[0]
        for start, stop, (own_k, own_v) in ((0, 50, (k, v)), (50, 75, drafts), (50, 80, (k, v))):
            batch = forward_batch([Share([0] * stop, start, stop, [1, 0])], 64)
            backend.ops.store_kv(layer, own_k[start:stop], own_v[start:stop], batch)
        halves.append(backend.ops.paged_attention(q[50:80], layer, batch, 0.35))
    assert (halves[0] == halves[1]).all()


def test_a_slot_has_the_two_latest_groups() -> None:
    backend = NumpyBackend()
    cache = backend.make_kv_cache(SHAPE, 4, 64, "int4", 3)
    heads = SHAPE.layers[0].attention
    k = normal(100, heads.num_kv_heads, heads.head_dim)
    # The last one goes back by a group: of the one before that, nothing is left.
    for start, stop, groups in ((0, 70, (1, 2)), (70, 100, (2, 3)), (80, 90, (2,))):
        batch = forward_batch([Share([0] * stop, start, stop, [2, 0], state_slot=1)], 64)
        backend.ops.store_kv(cache.layers[1], k[start:stop], k[start:stop], batch)
        for group in groups:
            known = k[32 * group : stop][:32]
            assert (cache.read_open_keys(1, 1, group)[: len(known)] == known).all()
    assert cache.layers[1].open_keys.latest.keys() == {(1, 2)}  # of the latest step alone
    cache.copy_state(1, 2)
    data = cache.read_state(2)
    assert data.shape == (cache.bytes_per_state,)
    cache.write_state(0, data)
    assert (cache.read_open_keys(0, 1, 2)[:26] == k[64:90]).all()
