"""The integer formats of the KV cache, compared with their definition."""

import hashlib

import numpy as np
import pytest

from pellucid.backends.numpy.dimension_codes import quantize_groups
from pellucid.backends.numpy.kv_codes import (
    ROTATE_BACK,
    ROTATE_IN,
    CodeRows,
    quantize_rows,
    rotate,
)
from pellucid.facts.kv_formats import KV_FORMATS, NumberFormat

KEYS8, VALUES8 = KV_FORMATS["int8"].halves
BITS4 = KV_FORMATS["int8,int4"].values
FORMATS = [KEYS8, VALUES8, BITS4]
names = pytest.mark.parametrize("stored_as", FORMATS, ids=["keys8", "values8", "bits4"])


def stored(x: np.ndarray, stored_as: NumberFormat) -> np.ndarray:
    """What comes back of x [T, K, D]."""
    rows = CodeRows.zeros(stored_as, len(x) + 3, *x.shape[1:])
    slots = np.random.default_rng(0).permutation(len(x) + 3)[: len(x)]
    rows.write(slots, x)
    return rows.read(slots)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("head_dim", [8, 32, 40, 64, 7])
@names
def test_numbers_are_off_by_half_a_step(stored_as: NumberFormat, head_dim: int) -> None:
    x = normal(50, 3, head_dim) * np.logspace(-20, 20, 50, dtype=np.float32)[:, None, None]
    _, scales = quantize_rows(x, stored_as)
    steps = np.abs(scales.astype(np.float64))
    error = np.abs(stored(x, stored_as).astype(np.float64) - x)
    numbers = x
    if stored_as.is_rotated:  # what was rotated has the steps, and the rotation keeps lengths
        groups = np.zeros((*x.shape[:2], 32 * steps.shape[-1]))
        groups[..., :head_dim] = np.square(error)
        mean_error = np.sqrt(groups.reshape(*steps.shape, 32).sum(axis=-1) / 32)
        # rotated in, numbers are twice the root of 1/8
        assert (mean_error <= 0.5001 * np.sqrt(2) * steps).all()
        padded = np.zeros(groups.shape, np.float32)
        padded[..., :head_dim] = x
        numbers = rotate(padded, ROTATE_IN)[..., :32]
    else:
        assert (error <= 0.5001 * steps).all()
        assert np.median(error / steps) < 0.3
    if stored_as.bits == 8:
        amax = np.abs(numbers).max(axis=-1)
        ratio = 127 * steps[..., 0] / amax
        assert (ratio >= 1 - 1e-6).all() and (ratio <= 1 + 2**-7 + 1e-6).all()


def test_codes_that_fit_exactly_come_back_exactly() -> None:
    codes = np.arange(-127, 128, dtype=np.float32).reshape(1, 1, -1)
    assert (stored(codes * 0.25, VALUES8) == codes * 0.25).all()
    codes = np.tile(np.arange(-8, 8, dtype=np.float32), 2).reshape(1, 1, -1)
    whole = np.append(np.arange(-15, 16, dtype=np.float32), 127).reshape(1, 1, -1)
    x = rotate(whole * np.float32(0.5), ROTATE_BACK)
    assert (stored(x, KEYS8) == x).all()
    for scale in (0.5, -0.5):  # the extreme one is -8, whichever sign it has
        x = rotate(codes * np.float32(scale), ROTATE_BACK)
        assert (stored(x, BITS4) == x).all()


def test_a_rotation_is_undone_and_spreads_one_number() -> None:
    x = np.round(normal(2, 64) * 256)  # sums of whole numbers are exact
    assert (rotate(rotate(x, ROTATE_IN), ROTATE_BACK) == x).all()
    one = np.zeros((1, 32), np.float32)
    one[0, 5] = 8
    assert (np.abs(rotate(one, ROTATE_IN)) == 1).all()


def test_stored_numbers_keep_their_bits() -> None:
    """On every machine and in every version: blocks on disk are read by others."""
    x = np.random.default_rng(1).integers(-999, 1000, (40, 3, 40)).astype(np.float32)
    x = np.ldexp(x, 3 * np.arange(-20, 20)[:, None, None])
    parts = [*(quantize_rows(x, each) for each in FORMATS), quantize_groups(x[None, :32], 64)]
    bits = b"".join(array.tobytes() for arrays in parts for array in arrays)
    assert hashlib.sha256(bits).hexdigest().startswith("e0bcf66372d0f112")


@names
def test_small_numbers_are_zero_and_others_not(stored_as: NumberFormat) -> None:
    x = np.zeros((3, 1, 32), np.float32)
    x[1, 0, 3], x[2, 0, 3] = 2.0**-101, 2.0**-96
    assert (stored(x, stored_as)[:2] == 0).all()
    assert stored(x, stored_as)[2, 0, 3] == pytest.approx(x[2, 0, 3], rel=2**-7)
    x[2, 0, 3] = 2.0**-100
    assert (stored(x, stored_as)[2, 0, 3] > 0) == (not stored_as.is_rotated)


@names
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_seen_in_its_group(stored_as: NumberFormat, bad: float) -> None:
    x = normal(2, 2, 64)
    x[1, 0, 40:42] = bad  # two, whose difference is not a number
    back = stored(x, stored_as)
    group = slice(None) if stored_as is VALUES8 else slice(32, 64)
    assert np.isnan(back[1, 0, group]).all()
    assert np.isfinite(back).sum() == back.size - back[1, 0, group].size


@names
def test_a_row_is_its_own(stored_as: NumberFormat) -> None:
    x = normal(20, 2, 48)
    together = quantize_rows(x, stored_as)
    alone = [quantize_rows(row[None], stored_as) for row in x]
    assert (together[0] == np.concatenate([codes for codes, _ in alone])).all()
    assert (together[1] == np.concatenate([scales for _, scales in alone])).all()
