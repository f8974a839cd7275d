"""Every op on PyTorch against its definition in NumPy: all stored formats, within the rounding of f32."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.numpy.kv_codes import quantize_rows, restore_rows
from pellucid.backends.quantization.formats import FORMATS, STORED_FORMATS
from pellucid.backends.row_table import MatrixRows
from pellucid.backends.torch.memory import to_device, to_host
from pellucid.facts.kv_formats import KV_FORMATS
from pellucid.facts.model_config import (
    DynamicRopeScaling,
    GatedDeltaNetConfig,
    RopeConfig,
    RopeGrowth,
    YarnRopeScaling,
)
from pellucid.inputs.config import block_sizes
from support.attention_cases import AttentionCase, paged_attention_in_steps
from support.batches import Share, forward_batch
from support.block_moves import (
    check_block_moves,
    check_layers_of_several_shapes,
    check_unpacked_blocks,
)
from support.expert_cases import random_choice, random_experts
from support.host_ops import HostBackend
from support.open_keys import check_open_keys, check_shared_layers, check_slots
from support.random_matrices import random_matrix
from support.recurrence_cases import ConvolutionCase, DeltaCase
from support.steps import random_steps, whole

TORCH, NUMPY = HostBackend(), NumpyBackend(quantize_activations=False)
BOTH = (TORCH, NUMPY)
# Of norms. Kernels round rows and weights to bf16.
CLOSE = 1e-2 if TORCH.ops.kernels else 1e-5
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    error = np.linalg.norm(found.astype(np.float64) - expected)
    assert error <= CLOSE * np.linalg.norm(expected)


def matrix_of(name, num_outputs, num_inputs, seed=1):
    if name in FLOATS:
        return normal(seed, num_outputs, num_inputs).astype(FLOATS[name])
    return random_matrix(STORED_FORMATS[name], num_outputs, num_inputs, np.random.default_rng(seed))


@pytest.mark.parametrize("name", [*FLOATS, *STORED_FORMATS])
@pytest.mark.parametrize("num_inputs", [512, 160])
def test_linear_of_each_stored_format(name, num_inputs):
    weight, bias, x = matrix_of(name, 33, num_inputs), normal(2, 33), normal(3, 21, num_inputs)
    found, expected = (each.ops.linear(x, each.weights.matrix(weight, bias)) for each in BOTH)
    assert_close(found, expected)


@pytest.mark.parametrize("name", [*FLOATS, *STORED_FORMATS])
def test_codes_stand_for_the_same_numbers_bit_for_bit(name):
    weight, ids = matrix_of(name, 40, 160), np.array([3, 39, 3, 0])
    found, expected = (each.ops.embed(ids, each.weights.matrix(weight)) for each in BOTH)
    assert (found == expected).all()


@pytest.mark.parametrize("num_rows", [0, 1, 40])
def test_a_matrix_of_several_formats(num_rows):
    from pellucid.backends.joined_matrix import join_matrices

    weight = join_matrices([matrix_of("int4", 8, 64), matrix_of("bf16", 5, 64)])
    x, bias = normal(3, num_rows, 64), normal(4, 13)
    found, expected = (each.ops.linear(x, each.weights.matrix(weight, bias)) for each in BOTH)
    assert_close(found, expected)


def test_a_matrix_that_is_widened_in_parts(monkeypatch):
    weight, x = matrix_of("int4", 50, 64), normal(3, 5, 64)
    whole_matrix = TORCH.ops.linear(x, TORCH.weights.matrix(weight))
    monkeypatch.setattr("pellucid.backends.torch.weights.MAX_WIDENED", 7 * 64)
    in_parts = TORCH.ops.linear(x, TORCH.weights.matrix(weight))
    assert_close(in_parts, whole_matrix)


@pytest.mark.parametrize("stored", ["f32", "bf16", "int4"])
def test_rows_of_a_table_in_a_file(stored):
    ids = np.array([3, 3, 10, 0])
    found, expected = (
        each.ops.embed(ids, each.weights.table(MatrixRows(matrix_of(stored, 11, 64))), 1.5)
        for each in BOTH
    )
    assert (found == expected).all()


@pytest.mark.parametrize("shape", [(3, 1), (3, 7), (2, 3, 16), (4, 257)])
def test_norms(shape):
    x, weight, bias = 3 * normal(0, *shape) + 1, normal(1, shape[-1]), normal(2, shape[-1])
    for run in (
        lambda each: each.ops.rms_norm(x, each.weights.vector(weight), 1e-5),
        lambda each: each.ops.rms_norm(x, None, 1e-5),
        lambda each: each.ops.layer_norm(
            x, each.weights.vector(weight), each.weights.vector(bias), 1e-5
        ),
    ):
        assert_close(*map(run, BOTH))


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(1e4, 16),
        RopeConfig(500.0, 8, growth=RopeGrowth(0.1, 16)),
        RopeConfig(1e4, 16, DynamicRopeScaling(2.0, 64)),
        RopeConfig(1e4, 16, YarnRopeScaling(4.0, 64, 32.0, 1.0, 1.1, True)),
    ],
)
def test_rope(rope):
    batch = forward_batch([Share([0] * 90, 60, 90, range(6)), Share([0] * 7, 0, 7, [6])], 16)
    x = normal(0, 37, 3, 16)
    assert_close(*(each.ops.rope(x, batch, rope) for each in BOTH))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "clamped_swish"])
def test_activations(activation):
    x = 6 * normal(0, 9, 66)
    x[0, :4] = [-200, 200, 0, -0.0]
    for run in (
        lambda each: each.ops.activate(x, activation),
        lambda each: each.ops.gated_activate(x, activation),
        lambda each: each.ops.multiply(x, x[::-1].copy(), "silu"),
        lambda each: each.ops.multiply(x, x[:, :1], "sigmoid"),
        lambda each: each.ops.multiply(x, x),
        lambda each: each.ops.scale(x, each.weights.vector(normal(1, 66))),
    ):
        assert_close(*map(run, BOTH))


@pytest.mark.parametrize("router", ["softmax", "softmax_chosen", "sigmoid"])
@pytest.mark.parametrize("normalize", [False, True])
def test_routes(router, normalize):
    logits = normal(0, 50, 12)
    logits[::5] = np.round(logits[::5])  # equal ones: the lowest expert comes first
    found, expected = (
        each.ops.route(logits, 3, router, normalize, 1.5, each.weights.vector(normal(1, 12)))
        for each in BOTH
    )
    assert ((found != 0) == (expected != 0)).all()
    assert_close(found, expected)


def test_a_row_that_is_not_finite_shows_it_and_no_other_row_sees_it():
    logits = normal(0, 3, 6)
    logits[1, 2] = np.inf
    found, expected = (each.ops.route(logits, 2, "softmax") for each in BOTH)
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert np.isnan(found[1]).sum() == 2


@pytest.mark.parametrize("stored", ["f32", "bf16", "int4"])
@pytest.mark.parametrize("activation", ["silu", "clamped_swish"])
def test_experts(stored, activation):
    rng = np.random.default_rng(0)

    def store(weight):
        if stored == "int4":
            return NUMPY.weights.quantize(weight, FORMATS[stored])
        return weight.astype(FLOATS[stored])

    case = random_experts(rng, 6, 32, 64, store, has_bias=True)
    x, weights = normal(1, 23, 64), random_choice(rng, 23, 6, 3)
    assert_close(
        *(each.ops.expert_mlp(x, weights, 3, *case.handles(each), activation) for each in BOTH)
    )


@pytest.mark.parametrize("kv_dtype", list(KV_FORMATS))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (6, 1, 40), (2, 2, 64)])
def test_attention_in_each_kv_format(kv_dtype, heads, kv_heads, head_dim):
    case = AttentionCase.random(0, [5, 150, 300], heads, kv_heads, head_dim)
    steps = whole([5, 150, 300])
    size = min(block_sizes(kv_dtype))
    found, expected = (paged_attention_in_steps(each, case, steps, size, kv_dtype) for each in BOTH)
    for own, wanted in zip(found, expected, strict=True):
        assert_close(own, wanted)


@pytest.mark.parametrize("window", [None, 1, 20, 200])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_with_windows_caps_and_sinks(window, softcap, has_sinks):
    case = AttentionCase.random(0, [290, 33], 4, 2, 16)
    steps = random_steps([290, 33], np.random.default_rng(1))
    outputs = []
    for each in BOTH:
        sinks = each.weights.vector(normal(5, 4)) if has_sinks else None
        outputs.append(
            paged_attention_in_steps(
                each, case, steps, 32, sliding_window=window, softcap=softcap, sinks=sinks
            )
        )
    for own, wanted in zip(*outputs, strict=True):
        assert_close(own, wanted)


def test_recurrent_layers():
    lengths, rng = [32, 1, 17], np.random.default_rng(0)
    steps = random_steps(lengths, rng)
    convolution = ConvolutionCase.random(lengths, 24, 4, has_bias=True)
    nets = GatedDeltaNetConfig(2, 4, 24, 32, 4), GatedDeltaNetConfig(1, 2, 16, 48, 4, tiled=True)
    for case in (convolution, *(DeltaCase.random(net, lengths) for net in nets)):
        found, expected = (case.run(each, steps, [2, 0, 1]) for each in BOTH)
        for own, wanted in zip(found, expected, strict=True):
            assert_close(own.astype(np.float32), wanted)


@pytest.mark.parametrize("dtype", list(KV_FORMATS))
def test_blocks_are_those_of_the_definition(dtype):
    check_block_moves(TORCH, dtype)
    check_unpacked_blocks(TORCH, dtype)
    check_layers_of_several_shapes(TORCH, dtype)


@pytest.mark.parametrize("head_dim", [16, 40, 64])
def test_codes_by_dimension_are_those_of_the_definition_bit_for_bit(head_dim):
    from pellucid.backends.numpy.dimension_codes import DimensionCodes
    from pellucid.backends.torch.kv_codes import quantize_groups, restore_groups

    number_format = KV_FORMATS["int4"].keys
    x = normal(0, 96, 2, head_dim) * 10.0 ** np.arange(-35, 35, 70 / head_dim)
    x = x.astype(np.float32)
    x[:32, 0, 1], x[32:64, 1, 2] = 0, 7.5
    x[3, 0, 3], x[40, 1, 0], x[70, 0, 5] = np.inf, np.nan, -np.inf
    x[64:96:2, 0, 6], x[65:96:2, 0, 6] = 3e38, -3e38  # their difference is infinite
    rows = DimensionCodes.zeros(number_format, 96, 2, head_dim)
    rows.write(np.arange(96), x)
    numbers = number_format.num_numbers(head_dim)
    keys = torch.nn.functional.pad(to_device(x, TORCH.device), (0, numbers - head_dim))
    codes, factors = quantize_groups(keys.to(torch.bfloat16).unflatten(0, (-1, 32)))
    assert (codes.flatten(0, 1).cpu().numpy() == rows.codes).all()
    found = to_host(factors.float())
    assert np.array_equal(found, rows.factors.astype(np.float32), equal_nan=True)
    restored = to_host(restore_groups(codes.flatten(0, 1), factors, head_dim))
    assert np.array_equal(restored, rows.read(np.arange(96)), equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "half"), [("int8", "keys"), ("int8", "values"), ("int4", "values")]
)
@pytest.mark.parametrize("head_dim", [16, 40, 64])
def test_kv_codes_are_those_of_the_definition_bit_for_bit(dtype, half, head_dim):
    from pellucid.backends.numpy.kv_codes import CodeRows
    from pellucid.backends.torch.kv_codes import quantize_rows as on_device
    from pellucid.backends.torch.kv_codes import restore_rows as back

    number_format = getattr(KV_FORMATS[dtype], half)
    x = normal(0, 60, 2, head_dim) * 10.0 ** np.arange(-30, 30)[:, None, None]
    x = x.astype(np.float32)
    x[1, 0] = 0
    x[2, 1, 3], x[3, 0, 0] = np.inf, np.nan
    x[4, 0, :2] = [-3, 3]  # of equal magnitudes the first counts
    rows = CodeRows.zeros(number_format, 60, 2, head_dim)
    rows.write(np.arange(60), x)
    device = TORCH.device
    codes, scales = on_device(to_device(x, device), number_format)
    assert (codes.cpu().numpy() == rows.codes).all()
    stored_scales = to_device(rows.scales, device)
    assert (to_host(scales.float()) == to_host(stored_scales.float())).all()
    expected = restore_rows(*quantize_rows(x, number_format), number_format, head_dim)
    found = to_host(back(codes, scales, number_format, head_dim))
    assert np.array_equal(found, expected, equal_nan=True)


def test_logits_are_capped():
    weight, x = matrix_of("bf16", 50, 32), 10 * normal(0, 3, 32)
    found, expected = (each.ops.logits(x, each.weights.matrix(weight), 5.0) for each in BOTH)
    assert_close(found, expected)
    assert (np.abs(found) <= 5).all()


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_stale_blocks_are_not_seen(dtype):
    """What another request left in a block or a slot, NaN even, changes nothing."""
    case = AttentionCase.random(0, [40], 4, 2, 16)
    clean = paged_attention_in_steps(TORCH, case, whole([40]), 32, dtype)
    make = TORCH._backend.make_kv_cache

    class Stale:
        def __getattr__(self, name):
            return getattr(TORCH, name)

        def make_kv_cache(self, *args):
            cache = make(*args)
            for each in (cache._blocks, *cache._slot_arrays()):
                each.view(torch.uint8).fill_(255)  # NaN in all float formats
            return cache

    (found,) = paged_attention_in_steps(Stale(), case, whole([40]), 32, dtype)
    assert (found == clean[0]).all()


def test_a_shared_batch_serves_all_layers():
    """A batch that is on the device already gives what the host's gives."""
    batch = forward_batch([Share([0] * 20, 3, 20, [0, 1])], 16)
    rope = RopeConfig(1e4, 16)
    x = normal(0, 17, 2, 16)
    prepared = TORCH.batch(batch)
    assert (TORCH.ops.rope(x, prepared, rope) == TORCH.ops.rope(x, batch, rope)).all()
    assert TORCH.batch(prepared) is prepared
    own = prepared.logits_batch()
    wanted = replace(batch).logits_batch()
    assert (own.slot_mapping.cpu().numpy() == wanted.slot_mapping).all()
    assert (own.seq_lens == wanted.seq_lens).all()


def test_open_keys_are_those_of_the_definition():
    check_open_keys(TORCH, NumpyBackend())
    check_slots(TORCH)
    check_shared_layers(TORCH)
