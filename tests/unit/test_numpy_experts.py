"""Routers and experts as NumPy defines them: what is chosen, how it is weighted and summed, row by row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.backends.numpy.backend import NumpyBackend
from support.expert_cases import random_choice, random_experts
from support.row_invariance import same_in_any_step

OPS = {"f32": NumpyBackend(np.float32), "f64": NumpyBackend(np.float64)}
EXACT = OPS["f64"]
ROUTERS = ("softmax", "softmax_chosen", "sigmoid")
seeds = st.integers(0, 2**32 - 1)


def expected_weights(logits, num_chosen, router, normalize, scale, bias):
    """One row, number by number."""
    sigmoids = [1 / (1 + math.exp(-logit)) for logit in logits]
    ranked = logits
    if router == "sigmoid":
        ranked = [score + b for score, b in zip(sigmoids, bias, strict=True)]
    by_rank = sorted(range(len(logits)), key=lambda expert: (-ranked[expert], expert))
    chosen = by_rank[:num_chosen]
    summed = range(len(logits)) if router == "softmax" else chosen
    total = sum(math.exp(logits[expert]) for expert in summed)
    scores = {
        expert: sigmoids[expert] if router == "sigmoid" else math.exp(logits[expert]) / total
        for expert in chosen
    }
    if normalize:
        scores = {expert: score / sum(scores.values()) for expert, score in scores.items()}
    return [scale * scores.get(expert, 0) for expert in range(len(logits))]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("router", ROUTERS)
def test_route(router, normalize):
    rng = np.random.default_rng(0)
    logits, bias = rng.normal(size=(9, 12)), rng.normal(size=12)
    own_bias = bias if router == "sigmoid" else None
    actual = EXACT.ops.route(logits, 3, router, normalize, 2.5, own_bias)
    for row, row_logits in zip(actual, logits, strict=True):
        expected = expected_weights(row_logits.tolist(), 3, router, normalize, 2.5, bias)
        np.testing.assert_allclose(row, expected, rtol=1e-12)
    assert ((actual != 0).sum(axis=1) == 3).all()


@pytest.mark.parametrize("router", ROUTERS)
def test_of_equal_logits_the_lowest_expert_is_chosen(router):
    logits = np.float32([[0, 1, 1, 1, 0], [2, 2, 2, 2, 2]])
    weights = OPS["f32"].ops.route(logits, 2, router)
    assert [np.flatnonzero(row).tolist() for row in weights] == [[1, 2], [0, 1]]
    assert (weights == OPS["f32"].ops.route(logits, 2, router, normalize=False, scale=1.0)).all()
    of_many = OPS["f32"].ops.route(np.float32(np.arange(400)[None] % 2), 150, router)
    assert np.flatnonzero(of_many[0]).tolist() == [*range(1, 300, 2)]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_logit_shows_in_its_own_row_alone(router, bad):
    logits = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    expected = OPS["f32"].ops.route(logits, 2, router)
    logits[1, 4] = bad
    actual = OPS["f32"].ops.route(logits, 2, router)
    assert (actual[[0, 2]] == expected[[0, 2]]).all()
    assert np.isnan(actual[1, :2]).all() and (actual[1, 2:] == 0).all()


@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_are_what_linear_and_activate_make_of_them(has_bias):
    rng = np.random.default_rng(0)
    case = random_experts(rng, 5, 8, 6, has_bias=has_bias)
    x, weights = rng.normal(size=(7, 6)), random_choice(rng, 7, 5, 3).astype(np.float64)
    gate, up, down = case.handles(EXACT)
    y = EXACT.ops.expert_mlp(x, weights, 3, gate, up, down, "silu")
    expected = np.zeros_like(x)
    for expert in range(5):
        gated = EXACT.ops.activate(EXACT.ops.linear(x, gate[expert]), "silu")
        inner = gated * EXACT.ops.linear(x, up[expert])
        expected += weights[:, [expert]] * EXACT.ops.linear(inner, down[expert])
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-14)


def test_a_row_that_asks_no_expert_is_zero():
    case = random_experts(np.random.default_rng(0), 3, 4, 4)
    weights = np.float32([[0, 0, 0], [0, 1, 0]])
    y = OPS["f32"].ops.expert_mlp(
        np.ones((2, 4), np.float32), weights, 1, *case.handles(OPS["f32"]), "silu"
    )
    assert (y[0] == 0).all() and (y[1] != 0).any()


@given(st.sampled_from(list(OPS)), seeds, st.integers(1, 40), st.integers(2, 9))
@settings(max_examples=20)
def test_rows_do_not_see_each_other(name, seed, num_tokens, num_experts):
    backend, rng = OPS[name], np.random.default_rng(seed)
    hidden, num_chosen = 12, int(rng.integers(1, num_experts + 1))
    router = backend.weights.matrix(rng.normal(size=(num_experts, hidden)))
    experts = random_experts(rng, num_experts, 9, hidden).handles(backend)
    x = rng.normal(size=(num_tokens, hidden)).astype(backend.ops.dtype)

    def layer(rows):
        logits = backend.ops.linear(rows, router)
        weights = backend.ops.route(logits, num_chosen, "softmax", normalize=True)
        return backend.ops.expert_mlp(rows, weights, num_chosen, *experts, "silu")

    assert same_in_any_step(layer, x, rng)
