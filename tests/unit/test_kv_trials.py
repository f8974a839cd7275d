"""benchmarks/kv_trials.py: attention as a format of the KV cache would round it."""

from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pytest

from pellucid.backends.ops import Ops
from support.attention_cases import AttentionCase, dense_attention
from support.batches import Share, forward_batch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import kv_trials

    return kv_trials


def attention(trials, trial, case, **options):
    ((q, k, v),) = case.requests
    batch = forward_batch([Share([0] * len(q), 0, len(q), [0, 1, 2, 3])], 32)
    ops = trials.TrialOps(cast(Ops, None), trial)
    ops.store_kv(0, k, v, batch)
    return ops.paged_attention(q, 0, batch, 0.35, **options)


@pytest.mark.parametrize("options", [{}, {"sliding_window": 20}, {"softcap": 2.0}])
def test_attention_that_rounds_nothing_is_exact(trials, options):
    case = AttentionCase.random(0, (75,), 4, 2, 64)
    found = attention(trials, trials.Trial("f32"), case, **options)
    assert np.abs(found - dense_attention(*case.requests[0], 0.35, **options)).max() < 1e-5


def test_rotated_codes_are_as_close_as_those_of_the_cache(trials):
    x = np.random.default_rng(1).standard_normal((500, 2, 64)).astype(np.float32)
    errors = [
        np.square(rounded(x) - x).mean() for rounded in (trials.int4_values, trials.RotatedCodes(4))
    ]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)
    five_bits = np.square(trials.RotatedCodes(5)(x) - x).mean()
    assert five_bits < 0.3 * errors[1]


def test_a_dimension_of_a_group_is_within_half_a_step(trials):
    k = np.random.default_rng(2).standard_normal((32, 2, 8)).astype(np.float32)
    k[:, 1, 3] += 1000
    group = trials.KeyGroup.of(k, bits=4)
    assert group.codes.min() == 0 and group.codes.max() == 15
    error = np.abs(group.codes * group.scales + group.minimums - k)
    assert (error <= group.scales * 0.501).all()
    assert (group.scales <= (k.max(0) - k.min(0)) / 15 * (1 + 2**-7)).all()


def test_a_query_reads_its_own_group_in_bf16_and_earlier_ones_as_codes(trials):
    case = AttentionCase.random(3, (75,), 4, 2, 64)
    in_bf16, grouped = trials.Trial("bf16", trials.in_bf16), trials.Trial("grouped", grouped_bits=4)
    expected, found = (attention(trials, each, case) for each in (in_bf16, grouped))
    difference = np.abs(found - expected).max(axis=(1, 2))
    assert difference[:32].max() < 0.05  # queries are in bf16 as well
    assert np.median(difference[32:]) > 0.05
    # What comes later changes nothing.
    cut = AttentionCase((tuple(each[:50] for each in case.requests[0]),))
    assert np.abs(attention(trials, grouped, cut) - found[:50]).max() < 1e-5


@pytest.mark.parametrize("peaks", ["range", "group", "product"])
def test_codes_of_queries_over_groups_are_close(trials, peaks):
    case = AttentionCase.random(4, (75,), 4, 2, 64)
    exact = trials.Trial("exact", grouped_bits=4)
    coded = trials.Trial("coded", grouped_bits=4, query_dims=32, query_peaks=peaks)
    difference = attention(trials, coded, case) - attention(trials, exact, case)
    assert 0 < np.abs(difference).max() < 0.2


def test_a_probability_is_within_half_a_step_of_its_sixteen(trials):
    weights = np.random.default_rng(5).random((2, 3, 70)).astype(np.float32)
    weights[..., 40] = 100
    error = np.abs(trials.probability_codes(weights) - weights)
    shares = [key for key in range(64) if key % 16 // 4 == 40 % 16 // 4]
    assert (error[..., shares] <= 100 / 127 * 0.501).all()
    others = np.setdiff1d(np.arange(70), shares)
    assert (error[..., others] <= 1 / 127 * 0.501).all()
