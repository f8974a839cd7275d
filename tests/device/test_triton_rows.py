"""Norms, rotations and storing in Triton's interpreter: plain PyTorch's numbers, the same bits in any step."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pellucid.backends.numpy.kv_codes import EXTREME_CODES
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.largest import find_largest
from pellucid.backends.torch.triton.linear import planes_of
from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps
from pellucid.backends.torch.triton.pending import Known, known
from pellucid.backends.torch.triton.rows import Heads, Normed
from pellucid.backends.torch.triton.self_check import fused_heads_are_right, fused_sums_are_right
from pellucid.facts.kv_formats import KV_FORMATS
from pellucid.facts.model_config import RopeConfig, YarnRopeScaling
from support.attention_cases import AttentionCase, config_of
from support.batches import Share, forward_batch
from support.host_ops import DEVICE

PLAIN = TorchBackend(DEVICE)
OPS = TritonOps(PLAIN.device, PLAIN.ops.sizes, KernelChoice().only("rows"))
CLOSE = 1e-6


def normal(*shape):
    return PLAIN.ops.from_host(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def assert_close_and_alone(op, plain, x):
    found, expected = op(x, 0), plain(x, 0)
    assert found.shape == expected.shape
    assert (found - expected).norm() <= CLOSE * expected.norm()
    for row in range(len(x)):
        assert torch.equal(op(x[row : row + 1], row)[0], found[row])
    assert len(op(x[:0], 0)) == 0


@pytest.mark.parametrize("shape", [(5, 700), (4, 3, 24)])
@pytest.mark.parametrize("has_weight", [True, False])
def test_rms_norm(shape, has_weight):
    weight = normal(shape[-1]) if has_weight else None
    # Heads are often a part of what a product gave.
    x = normal(*shape[:-2], 2 * shape[-2], shape[-1])[..., : shape[-2], :]
    assert_close_and_alone(
        lambda x, _: OPS.rms_norm(x, weight, 1e-5),
        lambda x, _: PLAIN.ops.rms_norm(x, weight, 1e-5),
        x,
    )


@pytest.mark.parametrize(
    "rope",
    [RopeConfig(1e4, 24), RopeConfig(1e4, 16, YarnRopeScaling(4.0, 32, 1.0, 32.0, 1.0, True))],
)
def test_rope(rope):
    def through(ops):
        def rotated(x, first):
            if len(x) == 0:
                return x
            share = Share([0] * 40, first, first + len(x), range(3))
            return ops.rope(x, forward_batch([share], 16), rope)

        return rotated

    assert_close_and_alone(through(OPS), through(PLAIN.ops), normal(5, 6, 24)[:, 1:4])


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "clamped_swish"])
def test_gated_activation(activation):
    assert_close_and_alone(
        lambda x, _: OPS.gated_activate(x, activation),
        lambda x, _: PLAIN.ops.gated_activate(x, activation),
        4 * normal(4, 200),
    )


@pytest.mark.parametrize("num_planes", [1, 4])
def test_a_sum_its_norm_and_the_rounding_for_a_product_are_one_launch_that_changes_no_bit(
    num_planes,
):
    x, y, weight = normal(3, 200), normal(4, 200)[1:], normal(200)
    apart = known(OPS.rms_norm(x + y, weight, 1e-5))
    total = Known(x) + y
    fused = OPS.rms_norm(total, weight, 1e-5)
    assert torch.equal(planes_of(fused, num_planes), planes_of(apart, num_planes))
    assert total.is_known and not fused.is_known
    assert torch.equal(total, x + y) and torch.equal(fused, apart)
    gate_up = normal(3, 400)
    gated = OPS.gated_activate(gate_up, "silu")
    wanted = known(OPS.gated_activate(gate_up, "silu"))
    assert torch.equal(planes_of(gated, num_planes), planes_of(wanted, num_planes))


@pytest.mark.parametrize("rope", [None, RopeConfig(1e4, 24), RopeConfig(1e4, 16)])
@pytest.mark.parametrize("has_norm", [True, False])
def test_queries_and_keys_are_placed_in_one_launch_that_changes_no_bit(rope, has_norm):
    case = AttentionCase.random(0, [5], 3, 1, 24)
    batch = PLAIN.batch(forward_batch([Share([0] * 5, 0, 5, [1])], 16))
    qkv, weights = normal(5, 5, 24), normal(2, 24)

    def run(after_each):
        ops = TritonOps(PLAIN.device, PLAIN.ops.sizes, KernelChoice().only("rows"))
        cache = PLAIN.make_kv_cache(config_of(case), 2, 16, "bf16")
        heads = []
        for x, weight in zip(qkv[:, :4].split((3, 1), dim=1), weights, strict=True):
            if has_norm:
                x = after_each(ops.rms_norm(x, weight, 1e-5))
            heads.append(x if rope is None else after_each(ops.rope(x, batch, rope)))
        q, k = heads
        ops.store_kv(cache.layers[0], k, qkv[:, 4:], batch)
        waits = has_norm or rope is not None
        assert not waits or after_each is known or q.is_known
        return known(q), np.stack(cache.read_blocks([1]))

    (q, blocks), (apart_q, apart_blocks) = run(lambda x: x), run(known)
    assert torch.equal(q, apart_q) and (blocks == apart_blocks).all()


@pytest.mark.parametrize("num_tokens", [5, 9000])
def test_largest(num_tokens):
    logits = normal(7, num_tokens)
    logits[0, -1] = logits[0].amax()  # of equal ones the first
    logits[1, [2, 4]] = torch.nan
    logits[2] = -torch.inf
    logits[3, 3], logits[4] = torch.inf, -2
    logits[5], logits[5, 2] = -0.0, 0
    found, wanted = OPS.find_largest(logits), find_largest(logits)
    assert torch.equal(found[0], wanted[0])
    own, peaks = (each[1].view(torch.float32) for each in (found, wanted))
    assert torch.equal(own.nan_to_num(7), peaks.nan_to_num(7)) and own[1].isnan()
    assert OPS.find_largest(logits[:0]).shape == (2, 0)


@pytest.mark.parametrize(
    ("kv_dtype", "head_dim"), [*((each, 24) for each in KV_FORMATS), ("int8,int4", 64)]
)
def test_stored_keys_and_values_are_those_of_plain_pytorch(kv_dtype, head_dim):
    case = AttentionCase.random(0, [21], 2, 2, head_dim)
    k, v = (
        10.0 ** np.arange(-33, 30, 3)[:, None, None] * each.cpu().numpy()
        for each in (normal(21, 2, head_dim), normal(21, 2, head_dim))
    )
    for each in (k, v):
        each[1, 0] = 0
        each[2, 1, 3], each[3, 0, 0], each[4, 1, 1] = np.inf, np.nan, -np.inf
        each[5, 0, :2] = [-3e3, 3e3]  # of equal magnitudes the first counts
        if kv_dtype in ("f32", "bf16"):
            each[3] = 0  # NaN has many bits
        each[6] = np.round(each[6] / np.abs(each[6]).max() * 4)  # many scales are equally good
    # Heads are often a part of what a product gave.
    k, v = PLAIN.ops.from_host(np.concatenate((k, v), axis=1).astype(np.float32)).split(2, dim=1)
    batch = PLAIN.batch(forward_batch([Share([0] * 21, 0, 21, [2, 0])], 32))
    blocks = []
    for ops in (OPS, PLAIN.ops):
        cache = PLAIN.make_kv_cache(config_of(case), 3, 32, kv_dtype)
        ops.store_kv(cache.layers[0], k, v, batch)
        blocks.append(np.stack(cache.read_blocks([0, 1, 2])))
    assert blocks[0].any() and (blocks[0] == blocks[1]).all()


def test_codes_are_tried_in_the_order_of_the_definition():
    steps = [(trial + 1) // 2 * 0.25 for trial in range(len(EXTREME_CODES))]
    signs = [-1 if trial % 2 else 1 for trial in range(len(EXTREME_CODES))]
    assert tuple(8 + s * step for s, step in zip(signs, steps, strict=True)) == EXTREME_CODES


def test_the_check_at_start_compares_launches_with_ops_apart(monkeypatch):
    batch = PLAIN.batch(forward_batch([Share([0] * 3, 0, 3, [0])], 32))
    heads = OPS, normal(3, 2, 64), normal(64), batch, RopeConfig(1e4, 64)
    sums = OPS, normal(3, 32), normal(32), 8
    assert fused_heads_are_right(*heads) and fused_sums_are_right(*sums)
    monkeypatch.setattr(Normed, "rounded", lambda own, planes: planes_of(1.01 * own, planes))
    monkeypatch.setattr(Heads, "rotated", lambda own, turns: Heads(own.x, None, None, turns))
    assert not fused_sums_are_right(*sums) and not fused_heads_are_right(*heads)
