"""Recurrent layers on NumPy: what they compute, and the same bits whatever steps compute them."""

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.model_config import GatedDeltaNetConfig
from support.recurrence_cases import ConvolutionCase, DeltaCase
from support.steps import chunks, random_steps, whole

EXACT, OPS = NumpyBackend(np.float64), NumpyBackend()
LENGTHS = (19, 1, 7, 3)
SLOTS = (2, 0, 4, 3)


def all_steps(lengths):
    """Ways to cut the texts, each text alone in each step or beside others."""
    yield [[(b, start, stop)] for b, n in enumerate(lengths) for [(_, start, stop)] in chunks(n, 1)]
    yield [[(b, start, stop)] for b, n in enumerate(lengths) for [(_, start, stop)] in chunks(n, 5)]
    for seed in range(4):
        yield random_steps(lengths, np.random.default_rng(seed))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 2, 4])
def test_a_convolution_reads_the_rows_before(kernel_size: int, has_bias: bool) -> None:
    case = ConvolutionCase.random(LENGTHS, 5, kernel_size, has_bias)
    taps = case.weight.reshape(kernel_size, 5)
    for x, y in zip(case.xs, case.run(EXACT, whole(LENGTHS), SLOTS), strict=True):
        for t in range(len(x)):
            rows = range(max(0, t - kernel_size + 1), t + 1)
            expected = sum(x[r] * taps[kernel_size - 1 - (t - r)] for r in rows)
            if case.bias is not None:
                expected = expected + case.bias
            np.testing.assert_allclose(y[t], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tiled", [False, True])
def test_a_delta_net_is_its_recurrence(tiled: bool) -> None:
    net = GatedDeltaNetConfig(2, 4, 6, 3, 4, tiled)
    case = DeltaCase.random(net, (9,))
    [output] = case.run(EXACT, whole([9]), (1,))
    [qkv], [b], [a] = case.qkvs, case.bs, case.alphas
    for head in range(4):
        key_head = head % 2 if tiled else head // 2
        state = np.zeros((6, 3))
        for t in range(9):
            q, k = (qkv[t, start + key_head * 6 :][:6] for start in (0, 12))
            q, k = (x / np.sqrt(x @ x + 1e-6) for x in (q, k))
            v = qkv[t, 24 + head * 3 :][:3]
            step = np.log1p(np.exp(a[t, head] + case.step_bias[head]))
            state = state * np.exp(case.log_decay[head] * step)
            beta = 1 / (1 + np.exp(-b[t, head]))
            state = state + np.outer(k, beta * (v - state.T @ k))
            np.testing.assert_allclose(output[t, head], state.T @ q * 6**-0.5, rtol=1e-9)


def test_a_convolution_does_not_depend_on_steps() -> None:
    case = ConvolutionCase.random(LENGTHS, 37, 3, has_bias=True)
    expected = case.run(OPS, whole(LENGTHS), SLOTS)
    for steps in all_steps(LENGTHS):
        for one, other in zip(case.run(OPS, steps, SLOTS), expected, strict=True):
            assert (one == other).all()


def test_a_delta_net_does_not_depend_on_steps() -> None:
    case = DeltaCase.random(GatedDeltaNetConfig(2, 4, 24, 32, 4), LENGTHS)
    expected = case.run(OPS, whole(LENGTHS), SLOTS)
    for steps in all_steps(LENGTHS):
        for one, other in zip(case.run(OPS, steps, SLOTS), expected, strict=True):
            assert (one == other).all()


def test_multiply() -> None:
    rng = np.random.default_rng(0)
    x, gate = rng.standard_normal((2, 5, 8))
    ops = EXACT.ops
    sigmoid = 1 / (1 + np.exp(-gate))
    np.testing.assert_array_equal(ops.multiply(x, gate), x * gate)
    np.testing.assert_allclose(ops.multiply(x, gate, "sigmoid"), x * sigmoid)
    np.testing.assert_allclose(ops.multiply(x, gate, "silu"), x * gate * sigmoid)
    one = gate[:, :1]
    np.testing.assert_allclose(ops.multiply(x, one, "sigmoid"), x / (1 + np.exp(-one)))
