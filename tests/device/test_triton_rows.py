"""Norms, rotations and storing in Triton's interpreter: plain PyTorch's numbers, the same bits in any step."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pellucid.backends.numpy.kv_codes import EXTREME_CODES
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps
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
