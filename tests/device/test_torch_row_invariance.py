"""Row invariance on PyTorch: a row has the same bits in any step, whatever other rows the step has."""

import numpy as np
import pytest
import torch

from pellucid.backends.quantization.formats import STORED_FORMATS
from pellucid.backends.torch.self_check import checked_ops, keeps_rows_apart
from pellucid.facts.model_config import DynamicRopeScaling, GatedDeltaNetConfig, RopeConfig
from pellucid.inputs.config import block_sizes
from support.attention_cases import AttentionCase, paged_attention_in_steps
from support.batches import Share, forward_batch
from support.expert_cases import random_choice, random_experts
from support.host_ops import HostBackend
from support.random_matrices import random_matrix
from support.recurrence_cases import ConvolutionCase, DeltaCase
from support.row_invariance import same_in_any_step
from support.steps import chunks, random_steps, whole

COUNTS = (1, 2, 7, 16, 64, 257)  # rows of a step
TORCH = HostBackend()
OPS, WEIGHTS = TORCH.ops, TORCH.weights


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_same(op, x):
    """Each row of op(x) has the same bits in steps of each number of rows, and in random ones."""
    every = op(x)
    assert np.isfinite(every).all()
    for count in COUNTS:
        for start in {0, 3, len(x) - count}:
            rows = slice(start, start + count)
            assert (op(x[rows]) == every[rows]).all(), (count, start)
    assert same_in_any_step(op, x, np.random.default_rng(1))


@pytest.mark.parametrize("num_outputs", [1, 2, 8, 33, 300])
@pytest.mark.parametrize("num_inputs", [8, 100, 1024])
def test_linear_of_every_width(num_outputs, num_inputs):
    handle = WEIGHTS.matrix(normal(1, num_outputs, num_inputs), normal(2, num_outputs))
    assert_same(lambda rows: OPS.linear(rows, handle), normal(0, 260, num_inputs))


@pytest.mark.parametrize("name", list(STORED_FORMATS))
def test_linear_of_codes(name):
    weight = random_matrix(STORED_FORMATS[name], 40, 256, np.random.default_rng(0))
    handle = WEIGHTS.matrix(weight)
    assert_same(lambda rows: OPS.linear(rows, handle), normal(0, 260, 256))


def test_the_check_at_start_finds_products_that_depend_on_a_rows_place(monkeypatch):
    """A library may add a column in another order than its neighbour; then each row is multiplied alone."""
    ops, multiply = TORCH._backend.ops, torch.mm
    assert checked_ops(ops) is ops

    def by_place(weight, columns):
        halves = multiply(weight[:, ::2], columns[::2]) + multiply(weight[:, 1::2], columns[1::2])
        return torch.where(
            torch.arange(columns.shape[1]) % 2 == 0, multiply(weight, columns), halves
        )

    monkeypatch.setattr(torch, "mm", by_place)
    with pytest.warns(
        RuntimeWarning, match="device='cpu': in products of 16 rows a row has other bits"
    ):
        alone = checked_ops(ops)
    assert alone.sizes.num_together == 1
    assert keeps_rows_apart(alone)
    x, handle = normal(0, 40, 64), WEIGHTS.matrix(normal(1, 9, 64))
    rows = [alone.linear(alone.from_host(x[i : i + 1]), handle) for i in range(40)]
    assert torch.equal(torch.cat(rows), alone.linear(alone.from_host(x), handle))


WIDE = normal(5, 1024)
ROW_OPS = {
    "rms_norm": lambda x: OPS.rms_norm(x, WEIGHTS.vector(WIDE[: x.shape[1]]), 1e-5),
    "layer_norm": lambda x: OPS.layer_norm(
        x, WEIGHTS.vector(WIDE[: x.shape[1]]), WEIGHTS.vector(WIDE[: x.shape[1]]), 1e-5
    ),
    **{
        name: lambda x, name=name: OPS.activate(x, name)
        for name in ("silu", "gelu", "gelu_tanh", "clamped_swish")
    },
    "gated": lambda x: OPS.gated_activate(x, "silu"),
    "multiplied": lambda x: OPS.multiply(x, x[:, :1], "sigmoid"),
    "softmax": lambda x: OPS.route(x[:, :60], 4, "softmax", True),
    "sigmoid": lambda x: OPS.route(x[:, :60], 4, "sigmoid", True),
    "capped": lambda x: OPS.logits(x, WEIGHTS.matrix(normal(7, 99, x.shape[1])), 5.0),
}


@pytest.mark.parametrize("name", list(ROW_OPS))
@pytest.mark.parametrize("width", [66, 512, 1024])
def test_row_ops(name, width):
    assert_same(ROW_OPS[name], 4 * normal(0, 260, width))


def test_experts():
    rng = np.random.default_rng(0)
    handles = random_experts(rng, 6, 32, 64).handles(TORCH)
    weights = random_choice(rng, 260, 6, 3)
    both = np.concatenate((normal(1, 260, 64), weights), axis=1)
    assert_same(
        lambda rows: OPS.expert_mlp(rows[:, :64], rows[:, 64:].copy(), 3, *handles, "silu"), both
    )


def test_rope():
    rope = RopeConfig(1e4, 16, DynamicRopeScaling(2.0, 64))
    x = normal(0, 260, 2, 16)

    def rotated(positions):
        if len(positions) == 0:
            return x[:0]
        shares = [Share([0] * 260, p, p + 1, range(17)) for p in positions.tolist()]
        return OPS.rope(x[positions], forward_batch(shares, 16), rope)

    assert_same(rotated, np.arange(260))


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("window", [None, 40])
def test_attention_in_any_steps_and_blocks(kv_dtype, window):
    lengths = [150, 290, 1, 33]
    case = AttentionCase.random(0, lengths, 4, 2, 24)

    def run(steps, block_size):
        return paged_attention_in_steps(
            TORCH, case, steps, block_size, kv_dtype, sliding_window=window
        )

    sizes = block_sizes(kv_dtype)
    expected = run(whole(lengths), sizes[0])
    rng = np.random.default_rng(0)
    for block_size in {sizes[0], 32, 128}:
        found = run(random_steps(lengths, rng), block_size)
        assert all((own == wanted).all() for own, wanted in zip(found, expected, strict=True))
    for count in COUNTS:  # of one request alone
        alone = AttentionCase((case.requests[1],))
        (found,) = paged_attention_in_steps(
            TORCH, alone, chunks(290, max(count, 7)), 32, kv_dtype, sliding_window=window
        )
        assert (found == expected[1]).all()


@pytest.mark.parametrize(
    "net", [GatedDeltaNetConfig(2, 4, 24, 32, 4), GatedDeltaNetConfig(1, 1, 5, 16, 4)]
)
def test_recurrent_layers_in_any_steps(net):
    lengths = [32, 1, 29]
    convolution = ConvolutionCase.random(lengths, 24, 4, has_bias=False)
    for case in (convolution, DeltaCase.random(net, lengths)):
        expected = case.run(TORCH, whole(lengths), [0, 1, 2])
        for seed in range(4):
            steps = random_steps(lengths, np.random.default_rng(seed))
            found = case.run(TORCH, steps, [2, 0, 1])
            assert all((own == wanted).all() for own, wanted in zip(found, expected, strict=True))
