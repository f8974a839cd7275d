"""The integer formats of the KV cache, compared with their definition."""

import numpy as np
import pytest

from pellucid.backends.numpy_kv_codes import CodeRows, quantize_rows


def stored(x: np.ndarray, bits: int) -> np.ndarray:
    """What comes back of x [T, K, D]."""
    rows = CodeRows.zeros(bits, len(x) + 3, *x.shape[1:])
    slots = np.random.default_rng(0).permutation(len(x) + 3)[: len(x)]
    rows.write(slots, x)
    return rows.read(slots)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("head_dim", [8, 32, 40, 64, 7])
@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_are_off_by_half_a_step(bits: int, head_dim: int) -> None:
    x = normal(50, 3, head_dim) * np.logspace(-20, 20, 50, dtype=np.float32)[:, None, None]
    _, scales = quantize_rows(x, bits)
    group_dims = head_dim if bits == 8 else 32
    steps = np.repeat(np.abs(scales.astype(np.float64)), group_dims, axis=-1)[..., :head_dim]
    error = np.abs(stored(x, bits).astype(np.float64) - x)
    # With 4 bits what is opposite to the extreme one ends a step short of it.
    assert (error <= (0.5001 if bits == 8 else 1.0001) * steps).all()
    assert np.median(error / steps) < 0.3
    amax = np.abs(x).max(axis=-1) if head_dim <= group_dims else np.abs(x[..., :32]).max(axis=-1)
    largest = 127 if bits == 8 else 8
    ratio = largest * np.abs(scales[..., 0].astype(np.float64)) / amax
    assert (ratio >= 1 - 1e-6).all() and (ratio <= 1 + 2**-7 + 1e-6).all()


def test_codes_that_fit_exactly_come_back_exactly() -> None:
    codes = np.arange(-127, 128, dtype=np.float32).reshape(1, 1, -1)
    assert (stored(codes * 0.25, 8) == codes * 0.25).all()
    codes = np.tile(np.arange(-8, 8, dtype=np.float32), 2).reshape(1, 1, -1)
    for scale in (0.5, -0.5):  # the extreme one is -8, whichever sign it has
        assert (stored(codes * scale, 4) == codes * scale).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_small_numbers_are_zero_and_others_not(bits: int) -> None:
    x = np.zeros((3, 1, 32), np.float32)
    x[1, 0, 3], x[2, 0, 3] = 2.0**-101, 2.0**-99
    assert (stored(x, bits)[:2] == 0).all()
    assert stored(x, bits)[2, 0, 3] == pytest.approx(x[2, 0, 3], rel=2**-7)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_seen_in_its_group(bits: int, bad: float) -> None:
    x = normal(2, 2, 64)
    x[1, 0, 40] = bad
    back = stored(x, bits)
    group = slice(None) if bits == 8 else slice(32, 64)
    assert np.isnan(back[1, 0, group]).all()
    assert np.isfinite(back).sum() == back.size - back[1, 0, group].size


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_is_its_own(bits: int) -> None:
    x = normal(20, 2, 48)
    together, alone = quantize_rows(x, bits), [quantize_rows(row[None], bits) for row in x]
    assert (together[0] == np.concatenate([codes for codes, _ in alone])).all()
    assert (together[1] == np.concatenate([scales for _, scales in alone])).all()
