"""The kernels of paged attention in Triton's interpreter: NumPy's numbers, and the same bits in any step, tile, block
size and division among programs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.triton.attention import AttentionSizes
from pellucid.backends.torch.triton.attention_plan import plan_attention
from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps
from pellucid.backends.torch.triton.self_check import with_kernels
from pellucid.backends.torch.triton.tiles import AttentionTile
from pellucid.facts.kv_formats import KV_FORMATS
from support.attention_cases import AttentionCase, config_of, paged_attention_in_steps
from support.batches import Share, forward_batch
from support.host_ops import DEVICE, HostOps
from support.steps import whole

PLAIN, NUMPY = TorchBackend(DEVICE), NumpyBackend(quantize_activations=False)
RANGE = 32
TILES = (AttentionTile(4, 16, 4, 2), AttentionTile(0, 32, 4, 2))
LENGTHS = [40, 1, 33]
# Chunks beside others, one token, a chunk that ends a range, within a group of positions that became codes.
STEPS = [[(0, 0, 30), (1, 0, 1), (2, 0, 31)], [(2, 31, 33), (0, 30, 31)], [(0, 31, 40)]]
# Divisions of work: every range by a program of its own as far as there is scratch; some of them; none.
SPLIT, SOME, WALK = (AttentionSizes(RANGE, *each) for each in ((16, 64), (16, 3), (1, 64)))
CLOSE = {"f32": 1e-5}  # of norms; else queries and probabilities are rounded to bf16


def backend(sizes, tiles=TILES):
    choice = KernelChoice(attention=sizes).only("attention")
    choice = replace(choice, tiles=choice.tiles._replace(attention=tiles))
    ops = TritonOps(PLAIN.device, PLAIN.ops.sizes, choice)
    return SimpleNamespace(ops=HostOps(ops), make_kv_cache=PLAIN.make_kv_cache)


def assert_close(found, expected, kv_dtype):
    for own, wanted in zip(found, expected, strict=True):
        error = np.linalg.norm(own.astype(np.float64) - wanted)
        assert error <= CLOSE.get(kv_dtype, 1e-2) * np.linalg.norm(wanted)


@pytest.mark.parametrize("kv_dtype", list(KV_FORMATS))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "sizes", "tiles"),
    [(4, 2, 24, None, SPLIT, TILES), (3, 1, 64, 30, SOME, TILES[:1])],
)
def test_each_kv_format_in_any_steps(kv_dtype, heads, kv_heads, head_dim, window, sizes, tiles):
    case = AttentionCase.random(0, LENGTHS, heads, kv_heads, head_dim)
    options = {"sliding_window": window}
    found = paged_attention_in_steps(backend(WALK), case, whole(LENGTHS), 32, kv_dtype, **options)
    expected = paged_attention_in_steps(NUMPY, case, whole(LENGTHS), 32, kv_dtype, **options)
    assert_close(found, expected, kv_dtype)
    again = paged_attention_in_steps(backend(sizes, tiles), case, STEPS, 64, kv_dtype, **options)
    assert all((own == wanted).all() for own, wanted in zip(again, found, strict=True))


@pytest.mark.parametrize("sizes", [SPLIT, WALK])
@pytest.mark.parametrize(("window", "softcap"), [(None, 2.0), (20, None)])
def test_sinks_and_soft_caps(sizes, window, softcap):
    case = AttentionCase.random(3, [41, 9], 4, 2, 16)
    sinks = np.array([0.5, -1, 2, 0], np.float32)
    options = {"sliding_window": window, "softcap": softcap, "sinks": sinks}
    found = paged_attention_in_steps(backend(sizes), case, whole([41, 9]), 16, "f32", **options)
    expected = paged_attention_in_steps(NUMPY, case, whole([41, 9]), 16, "f32", **options)
    assert_close(found, expected, "f32")


def test_what_is_behind_a_sequence_is_not_seen():
    """A block may hold another request's numbers, NaN too."""
    shares = [Share([0] * 5, 0, 5, [1])]
    ops = TritonOps(PLAIN.device, PLAIN.ops.sizes, KernelChoice(attention=WALK).only("attention"))
    batch = PLAIN.batch(forward_batch(shares, 16))
    case = AttentionCase.random(0, [5], 2, 1, 16)
    q, k, v = (ops.from_host(each) for each in case.requests[0])
    results = []
    for rest in (0.0, np.nan):
        layer = PLAIN.make_kv_cache(config_of(case), 2, 16, "f32").layers[0]
        for rows in (layer.k, layer.v):
            rows.arrays[0].fill_(rest)
        ops.store_kv(layer, k, v, batch)
        results.append(ops.paged_attention(q, layer, batch, 0.3))
    assert torch.isfinite(results[1]).all() and torch.equal(*results)


def test_a_graph_has_room_for_every_step():
    """A step's numbers, where those of all steps with as many rows go, give the step's bits."""
    case = AttentionCase.random(1, [40, 3], 2, 1, 16)
    ops = backend(SPLIT).ops._ops
    layer = PLAIN.make_kv_cache(config_of(case), 4, 16, "f32").layers[0]
    shares = [Share([0] * 40, 0, 40, [3, 0, 1]), Share([0] * 3, 0, 3, [2])]
    k, v = (np.concatenate([each[part] for each in case.requests]) for part in (1, 2))
    ops.store_kv(layer, *map(ops.from_host, (k, v)), PLAIN.batch(forward_batch(shares, 16)))
    last = [Share(each.token_ids, each.stop - 1, each.stop, each.block_ids) for each in shares]
    batch = PLAIN.batch(forward_batch(last, 16))
    q = ops.from_host(np.stack([each[0][-1] for each in case.requests]))
    expected = ops.paged_attention(q, layer, batch, 0.3)
    ((key, plan),) = batch.plans.items()
    roomy = plan.for_rows(8)
    numbers = roomy.numbers_of(batch)
    assert len(numbers) > len(plan.numbers) and plan.num_partials == 2
    batch.plans[key] = roomy.over(to_device(numbers, PLAIN.device))
    assert torch.equal(ops.paged_attention(q, layer, batch, 0.3), expected)


def test_a_plan_covers_every_row_and_range_once():
    rng = np.random.default_rng(0)
    for _ in range(50):
        heads, rows = int(rng.integers(1, 9)), int(rng.choice([16, 64]))
        window = None if rng.integers(2) else int(rng.integers(1, 300))
        lengths = rng.integers(1, 700, rng.integers(1, 6))
        starts = [int(rng.integers(0, length)) for length in lengths]
        shares = [
            Share([0] * length, start, length, range(44))
            for start, length in zip(starts, lengths.tolist(), strict=True)
        ]
        batch, most = forward_batch(shares, 16), int(rng.integers(0, 20))
        plan = plan_attention(batch, heads, rows, RANGE, window, rng.integers(1, 40), most)
        assert plan.num_partials <= most
        assert sorted(plan.items[plan.items[:, 7] >= 0][:, 7]) == list(range(plan.num_partials))
        seen = []
        for item in plan.items.tolist():
            first_row, request, position, begin, end, first, last, place, _ = item
            assert place < 0 or last == first + 1
            assert position == starts[request] and first_row == batch.query_start[request]
            for own in range(begin, min(begin + rows, end)):
                seen += [(request, own, number) for number in range(first, last)]
        wanted = []
        for request, (start, length) in enumerate(zip(starts, lengths.tolist(), strict=True)):
            for own in range((length - start) * heads):
                tile = own // rows * rows
                newest = start + (min(tile + rows, (length - start) * heads) - 1) // heads
                oldest = 0 if window is None else max(0, start + tile // heads - window + 1)
                ranges = range(oldest // RANGE, newest // RANGE + 1)
                wanted += [(request, own, number) for number in ranges]
        assert sorted(seen) == wanted


CHOICE = KernelChoice(attention=SPLIT).only("attention", "rows")


def test_the_check_at_start_takes_kernels_that_are_right(recwarn):
    ops = with_kernels(PLAIN.ops, CHOICE)
    assert isinstance(ops, TritonOps) and ops.choice == CHOICE and not recwarn.list


@pytest.mark.parametrize(
    ("change", "left", "message"),
    [
        (lambda tile, y: y * (1 + tile.rows * 1e-6), CHOICE.with_one_tile("attention"), "use one"),
        (lambda tile, y: y * 1.02, CHOICE.only("rows"), "'attention': gives other numbers than"),
        (lambda tile, y: y / 0, CHOICE.only("rows"), "'attention': gives other numbers than"),
    ],
)
def test_a_kernel_that_is_wrong_leaves_the_others(monkeypatch, change, left, message):
    def wrong(q, kv_layer, batch, *facts):
        return change(facts[-2], PLAIN.ops.paged_attention(q, kv_layer, batch, *facts[:4]))

    monkeypatch.setattr("pellucid.backends.torch.triton.ops.attend", wrong)
    with pytest.warns(RuntimeWarning, match=message):
        ops = with_kernels(PLAIN.ops, CHOICE)
    assert isinstance(ops, TritonOps) and ops.choice == left
