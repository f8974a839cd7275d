"""Norms, rotations and storing in Triton's interpreter: plain PyTorch's numbers, the same bits in any step."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps
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


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
def test_stored_keys_and_values_are_those_of_plain_pytorch(kv_dtype):
    case = AttentionCase.random(0, [21], 2, 2, 24)
    k, v = normal(21, 4, 24)[:, :2], normal(21, 2, 24)
    batch = PLAIN.batch(forward_batch([Share([0] * 21, 0, 21, [2, 0])], 16))
    blocks = []
    for ops in (OPS, PLAIN.ops):
        cache = PLAIN.make_kv_cache(config_of(case), 3, 16, kv_dtype)
        ops.store_kv(cache.layers[0], k, v, batch)
        blocks.append(np.stack(cache.read_blocks([0, 1, 2])))
    assert blocks[0].any() and (blocks[0] == blocks[1]).all()
