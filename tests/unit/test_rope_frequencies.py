"""Rotary frequencies: the properties of each scaling. tests/oracle compares them with transformers."""

import math

import numpy as np
import pytest

from pellucid.backends.rope_frequencies import frequency_rows, rope_frequencies
from pellucid.facts.model_config import (
    DynamicRopeScaling,
    LinearRopeScaling,
    Llama3RopeScaling,
    LongRopeScaling,
    RopeConfig,
    YarnRopeScaling,
)

THETA, DIM = 10000.0, 64
PLAIN = np.array([THETA ** (-2 * i / DIM) for i in range(DIM // 2)])


def frequencies(scaling, length=1):
    return rope_frequencies(RopeConfig(THETA, DIM, scaling), length)


def assert_same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-14)


def test_without_scaling_theta_spans_the_pairs():
    inv_freq, factor = frequencies(None)
    assert_same(inv_freq, PLAIN)
    assert factor == 1.0


def test_linear_divides_all():
    assert_same(frequencies(LinearRopeScaling(factor=4.0))[0], PLAIN / 4)


def test_dynamic_stretches_the_slowest_pair_by_the_growth_beyond_the_trained_length():
    scaling = DynamicRopeScaling(factor=2.0, original_max_position=100)
    assert_same(frequencies(scaling, length=100)[0], PLAIN)
    longer, _ = frequencies(scaling, length=250)
    # theta is chosen such that the last pair is interpolated by factor * 2.5 - (factor - 1) = 4.
    assert_same(longer[-1], PLAIN[-1] / 4)
    assert_same(longer[0], PLAIN[0])


def test_llama3_keeps_fast_pairs_divides_slow_ones_and_joins_them():
    scaling = Llama3RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=1000
    )
    inv_freq, factor = frequencies(scaling)
    num_turns = 1000 * PLAIN / (2 * math.pi)
    fast, slow = num_turns >= 4, num_turns <= 1
    assert fast.any()
    assert slow.any()
    assert_same(inv_freq[fast], PLAIN[fast])
    assert_same(inv_freq[slow], PLAIN[slow] / 8)
    between = ~fast & ~slow
    weight = (num_turns[between] - 1) / 3
    assert_same(inv_freq[between], PLAIN[between] * (weight + (1 - weight) / 8))
    assert factor == 1.0


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_keeps_fast_pairs_and_divides_slow_ones(truncate):
    scaling = YarnRopeScaling(
        factor=16.0,
        original_max_position=4096,
        beta_fast=32.0,
        beta_slow=1.0,
        attention_factor=1.25,
        truncate=truncate,
    )
    inv_freq, factor = frequencies(scaling)
    num_turns = 4096 * PLAIN / (2 * math.pi)
    # Truncation widens the ramp by less than a pair on each side.
    fast = np.flatnonzero(num_turns >= 32)[:-1]
    slow = np.flatnonzero(num_turns <= 1)[1:]
    assert_same(inv_freq[fast], PLAIN[fast])
    assert_same(inv_freq[slow], PLAIN[slow] / 16)
    share_kept = (inv_freq / PLAIN - 1 / 16) / (1 - 1 / 16)
    steps = np.diff(share_kept[(share_kept > 1e-9) & (share_kept < 1 - 1e-9)])
    assert len(steps) > 3
    assert_same(steps, steps[0] * np.ones(len(steps)))  # linear in the pair's index
    assert factor == 1.25


@pytest.mark.parametrize(
    ("original_max_position", "beta_fast", "first", "last"),
    [
        (5, 32.0, 0, 0.001),  # all but the first pair are divided
        (10**9, 1e5, 25, 63),  # the last one of the ramp is at most the dimension
    ],
)
def test_the_ramp_of_yarn_ends_within_the_dimension(original_max_position, beta_fast, first, last):
    scaling = YarnRopeScaling(4.0, original_max_position, beta_fast, 1.0, 1.25, True)
    divided = np.clip((np.arange(DIM // 2) - first) / (last - first), 0, 1)
    assert_same(frequencies(scaling)[0], PLAIN * (1 - divided) + PLAIN / 4 * divided)


def test_each_token_has_the_frequencies_of_its_text():
    lengths = np.array([100, 250, 100])
    dynamic = RopeConfig(THETA, DIM, DynamicRopeScaling(2.0, 100))
    rows, factor = frequency_rows(dynamic, lengths, np.float32)
    expected = [rope_frequencies(dynamic, length)[0].astype(np.float32) for length in lengths]
    assert rows.tolist() == np.array(expected).tolist() and factor == 1.0
    rows, _ = frequency_rows(RopeConfig(THETA, DIM), lengths, np.float32)
    assert rows.tolist() == [PLAIN.astype(np.float32).tolist()]


def test_longrope_changes_the_divisors_beyond_the_trained_length():
    short, long = tuple(range(1, 33)), tuple(range(2, 34))
    scaling = LongRopeScaling(short, long, original_max_position=50, attention_factor=1.5)
    for length, divisors in ((50, short), (51, long)):
        inv_freq, factor = frequencies(scaling, length)
        assert_same(inv_freq, PLAIN / divisors)
        assert factor == 1.5


def test_which_scalings_depend_on_the_length():
    dynamic = DynamicRopeScaling(2.0, 100)
    longrope = LongRopeScaling((1.0,) * 32, (2.0,) * 32, 50, 1.0)
    assert [
        RopeConfig(THETA, DIM, scaling).trained_length is not None
        for scaling in (None, LinearRopeScaling(2.0), dynamic, longrope)
    ] == [False, False, True, True]
