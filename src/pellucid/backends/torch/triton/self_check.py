"""The check at start of the kernels in Triton: whether they give the numbers of plain PyTorch, and tiles of all sizes a
row the same bits."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from pellucid.backends.ops import ForwardBatch, HostArray
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchKVLayer, TorchStateLayer, make_torch_kv_cache
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.noise import NoiseKeys
from pellucid.backends.torch.ops import TorchOps
from pellucid.backends.torch.triton.linear import LinearLaunch, planes_of
from pellucid.backends.torch.triton.ops import KERNELS, KernelChoice, KernelName, TritonOps
from pellucid.backends.torch.triton.pending import Known, known
from pellucid.backends.torch.triton.tiles import LinearTile, Tiles
from pellucid.backends.torch.weights import TorchMatrix, TorchWeights
from pellucid.facts.model_config import (
    Activation,
    AttentionConfig,
    GatedDeltaNetConfig,
    LayerConfig,
    MLPConfig,
    ModelConfig,
    RopeConfig,
)

_SHAPE = 200, 2048  # outputs and inputs; the last tile of outputs is not full
_FORMATS = ("int8", "int4-zp")
_EXPERTS, _CHOSEN = 3, 2
_CACHES = (
    "bf16",
    "int8,int4",
    "int4",
    "f32",
)  # floats, bytes and halves of bytes, keys by dimension; products of f32
_HEADS, _KV_HEADS, _HEAD_DIM, _BLOCK_SIZE = 6, 2, 64, 32
_QUERIES = 10
_FEW = 3  # rows
_ROWS = 70  # of products by which tiles are compared: more than one tile has, or not a whole one
_GATES: tuple[Activation, ...] = "silu", "gelu", "gelu_tanh", "clamped_swish"
_CLOSE = 1e-2  # of norms


def with_kernels(
    plain: TorchOps, choice: KernelChoice | None = None, shape: tuple[int, int] = _SHAPE
) -> TorchOps:
    """The ops of `plain` with kernels, as far as these are right on its device: each with tiles of all sizes, with
    those that agree, with one tile, or not at all. A RuntimeWarning says which, unless it is the first.

    Args:
        choice: what is tried; None: all kernels.
        shape: of the matrices that are tried.
    """
    wanted = KernelChoice.of(plain.device) if choice is None else choice
    if "linear" in wanted.used:
        wanted = replace(wanted, tiles=_tiles_that_agree(plain, wanted.tiles, shape))
    right: list[KernelName] = []
    for kernel in (each for each in KERNELS if each in wanted.used):
        checked = _checked(kernel, plain, wanted, shape)
        if checked is not None:
            wanted = checked
            right.append(kernel)
    return TritonOps(plain.device, plain.sizes, wanted.only(*right)) if right else plain


def _checked(
    kernel: KernelName, plain: TorchOps, wanted: KernelChoice, shape: tuple[int, int]
) -> KernelChoice | None:
    """`wanted` as far as it is right for a kernel; None: plain PyTorch computes."""
    for choice in (wanted, wanted.with_one_tile(kernel)):
        try:
            is_right = _CHECKS[kernel](plain, choice.only(kernel), shape)
        except Exception as error:  # of Triton, its compiler, the driver
            _warn(kernel, f"cannot be made ({error}): plain PyTorch computes, which is slower")
            return None
        if is_right:
            if choice != wanted:
                _warn(kernel, "tiles of several sizes give other bits: all steps use one: slower")
            return choice
    _warn(
        kernel,
        "gives other numbers than plain PyTorch, or a row other bits than alone: plain PyTorch computes, which is"
        " slower",
    )
    return None


def _warn(kernel: KernelName, message: str) -> None:
    warnings.warn(f"device='cuda': kernel {kernel!r}: {message}", RuntimeWarning, stacklevel=4)


def _tiles_that_agree(plain: TorchOps, tiles: Tiles, shape: tuple[int, int]) -> Tiles:
    """Of the tiles of products as many as give the same bits; a tile that the device cannot run gives none."""
    kept = tiles._replace(
        numbers=_most_alike(plain, tiles.numbers, ("bf16",), shape),
        codes=_most_alike(plain, tiles.codes, _FORMATS, shape),
    )
    every, own = ({*each.numbers, *each.codes} for each in (tiles, kept))
    if left_out := every - own:
        sizes = ", ".join(f"{tile.outputs}x{tile.rows}" for tile in sorted(left_out))
        _warn("linear", f"tiles of {sizes} give other bits than most and are left out: slower")
    return kept


def _most_alike(
    plain: TorchOps, tiles: tuple[LinearTile, ...], names: Sequence[str], shape: tuple[int, int]
) -> tuple[LinearTile, ...]:
    """The largest group of tiles with the same products of matrices in these formats; of equal ones the first."""
    rng, load = np.random.default_rng(0), TorchWeights(plain.device)
    weight = rng.standard_normal(shape, np.float32)
    x = to_device(rng.standard_normal((_ROWS, shape[1]), np.float32), plain.device)
    launches = [LinearLaunch.of(_stored(load, weight, name)) for name in names]
    groups: list[tuple[list[Tensor], list[LinearTile]]] = []
    for tile in tiles:
        try:
            products = [launch.run(x, tile) for launch in launches if launch is not None]
        except Exception:  # too much shared memory, for instance
            continue
        found = [each.view(torch.int32) for each in products]  # a NaN is no other number
        for bits, group in groups:
            if all(map(torch.equal, bits, found)):
                group.append(tile)
                break
        else:
            groups.append((found, [tile]))
    if not groups:
        return tiles
    _, largest = max(groups, key=lambda each: len(each[1]))
    return tuple(largest)


def _linear_is_right(plain: TorchOps, choice: KernelChoice, shape: tuple[int, int]) -> bool:
    """Whether rows have plain PyTorch's numbers within the rounding of bf16, and the same bits in steps of each tile,
    alone and at both ends of others."""
    ops, rng = TritonOps(plain.device, plain.sizes, choice), np.random.default_rng(0)
    weight = rng.standard_normal(shape, np.float32)
    load = TorchWeights(ops.device)
    most = max(each.rows for each in (*choice.tiles.numbers, *choice.tiles.codes))
    x = to_device(rng.standard_normal((2 * most, shape[1]), np.float32), ops.device)
    for name in ("bf16", *_FORMATS):
        matrix = _stored(load, weight, name)
        every = ops.linear(x, matrix)
        if not _is_close(every, plain.linear(x, matrix)):
            return False
        for tile in choice.tiles_of(name != "bf16"):
            of_tile = TritonOps(plain.device, plain.sizes, choice.with_tile(tile))
            for count in (1, tile.rows + 1, len(x)):
                for start in {0, len(x) - count}:
                    own = slice(start, start + count)
                    if not torch.equal(of_tile.linear(x[own], matrix), every[own]):
                        return False
    return True


def _experts_are_right(plain: TorchOps, choice: KernelChoice, shape: tuple[int, int]) -> bool:
    """Likewise rows that choose two of three experts, of which a step has as many rows as each tile takes."""
    ops, rng = TritonOps(plain.device, plain.sizes, choice), np.random.default_rng(0)
    width, hidden = shape[0] // 8 * 8, shape[1]  # whole words of codes
    most = max(each.rows for each in (*choice.tiles.numbers, *choice.tiles.codes))
    x = to_device(rng.standard_normal((most + 1, hidden), np.float32), ops.device)
    weights = rng.random((len(x), _EXPERTS), np.float32) + 0.5
    weights[np.arange(len(weights)), rng.integers(_EXPERTS, size=len(weights))] = 0
    scores = to_device(weights, ops.device)
    load = TorchWeights(ops.device)
    shapes = (width, hidden), (width, hidden), (hidden, width)
    floats = [[rng.standard_normal(each, np.float32) for _ in range(_EXPERTS)] for each in shapes]
    for name in ("bf16", *_FORMATS):
        gate, up, down = (load.stack(_stored(load, each, name) for each in own) for own in floats)
        every = ops.expert_mlp(x, scores, _CHOSEN, gate, up, down, "silu")
        if not _is_close(every, plain.expert_mlp(x, scores, _CHOSEN, gate, up, down, "silu")):
            return False
        for tile in choice.tiles_of(name != "bf16"):
            of_tile = TritonOps(plain.device, plain.sizes, choice.with_tile(tile))
            for count in (1, len(x)):
                own = slice(len(x) - count, None)
                found = of_tile.expert_mlp(x[own], scores[own], _CHOSEN, gate, up, down, "silu")
                if not torch.equal(found, every[own]):
                    return False
    return True


def _stored(load: TorchWeights, weight: HostArray, name: str) -> TorchMatrix:
    """A matrix in bf16, or in codes."""
    if name == "bf16":
        return load.uniform(weight.astype(ml_dtypes.bfloat16), None, True)
    return load.uniform(quantize_matrix(weight, FORMATS[name]), None, True)


def _attention_is_right(plain: TorchOps, choice: KernelChoice, shape: tuple[int, int]) -> bool:
    """Likewise rows of a text of more than two ranges, and some of them among others, which read the same blocks."""
    ops, rng = TritonOps(plain.device, plain.sizes, choice), np.random.default_rng(0)
    length = 2 * choice.attention.num_keys + 9
    every = _batch([(0, 5), (length - _QUERIES, length)], ops.device)
    steps = [(length - 1, length)], [(3, 4), (length - 1, length), (length - 9, length - 2)]
    q, k, v = (
        to_device(rng.standard_normal((length, heads, _HEAD_DIM), np.float32), ops.device)
        for heads in (_HEADS, _KV_HEADS, _KV_HEADS)
    )
    for kv_layer in _kv_layers(-(-length // _BLOCK_SIZE), ops.device):
        kv_layer.write(k, v, _batch([(0, length)], ops.device))
        found = ops.paged_attention(q[every.positions], kv_layer, every, 0.1)
        if not _is_close(found, plain.paged_attention(q[every.positions], kv_layer, every, 0.1)):
            return False
        for step in steps:
            batch = _batch(step, ops.device)
            rows = np.searchsorted(every.positions, batch.positions)
            own = ops.paged_attention(q[batch.positions], kv_layer, batch, 0.1)
            if not torch.equal(own, found[rows]):
                return False
    return True


def _rows_are_right(plain: TorchOps, choice: KernelChoice, shape: tuple[int, int]) -> bool:
    """Likewise norms, activations and rotations; whether stored keys and values, and the largest logits, are those of
    plain PyTorch, bit for bit; and whether the launches that do the work of several ops change a bit."""
    ops, rng = TritonOps(plain.device, plain.sizes, choice), np.random.default_rng(0)
    length, config = 40, RopeConfig(1e4, _HEAD_DIM - 8)
    batch, alone = _batch([(0, length)], ops.device), _batch([(length - 1, length)], ops.device)
    wide, heads, weight = (
        to_device(rng.standard_normal(own, np.float32), ops.device)
        for own in ((length, shape[1]), (length, _KV_HEADS, _HEAD_DIM), shape[1:])
    )
    few = wide[-_FEW:]
    pairs = (
        (ops.rms_norm(wide, weight, 1e-6), plain.rms_norm(wide, weight, 1e-6)),
        (ops.rope(heads, batch, config), plain.rope(heads, batch, config)),
        *((ops.gated_activate(few, each), plain.gated_activate(few, each)) for each in _GATES),
    )
    last = (
        *(ops.rms_norm(wide[-1:], weight, 1e-6), ops.rope(heads[-1:], alone, config)),
        *(ops.gated_activate(wide[-1:], each) for each in _GATES),
    )
    for (found, expected), own in zip(pairs, last, strict=True):
        if not (_is_close(found, expected) and torch.equal(found[-1:], own)):
            return False
    for kv_layer in _kv_layers(-(-length // _BLOCK_SIZE), ops.device):
        stored = []
        for each in (plain, ops):
            each.store_kv(kv_layer, heads, -heads, batch)
            own_blocks = batch.tables[0]
            halves = kv_layer.k.read(own_blocks), kv_layer.v.read(own_blocks)
            stored.append(torch.cat(halves))
            each.store_kv(kv_layer, 0 * heads, 0 * heads, batch)
        if not torch.equal(*stored):
            return False
    return (
        torch.equal(ops.find_largest(wide), plain.find_largest(wide))
        and all(fused_sums_are_right(ops, few, weight, planes) for planes in (1, 8))
        and fused_heads_are_right(
            *(ops, heads[-_FEW:], weight[:_HEAD_DIM]),
            *(_batch([(length - _FEW, length)], ops.device), config),
        )
    )


def fused_sums_are_right(ops: TritonOps, x: Tensor, weight: Tensor, num_planes: int) -> bool:
    """Whether a sum, its norm and the rounding for a product have the same bits in one launch; and a gated activation
    and the rounding."""
    added = x.flip(0)
    normed = ops.rms_norm(Known(x) + added, weight, 1e-6), ops.rms_norm(x + added, weight, 1e-6)
    gated = ops.gated_activate(x, "silu"), ops.gated_activate(x, "silu")
    return all(
        torch.equal(planes_of(together, num_planes), planes_of(known(apart), num_planes))
        for together, apart in (normed, gated)
    )


def fused_heads_are_right(
    ops: TritonOps, heads: Tensor, weight: Tensor, batch: TorchBatch, rope: RopeConfig
) -> bool:
    """Likewise norms and rotations of queries and keys, and what is stored."""
    kv_layer = next(_kv_layers(int(batch.tables.max()) + 1, ops.device))
    found = []
    for placed in (known, lambda x: x):
        q, k = (
            placed(ops.rope(placed(ops.rms_norm(x, weight, 1e-6)), batch, rope))
            for x in (heads, heads.flip(0))
        )
        ops.store_kv(kv_layer, k, heads, batch)
        halves = (each.read(batch.tables[0]).flatten(0, 2) for each in (kv_layer.k, kv_layer.v))
        found.append(torch.cat((known(q), *halves)))
    return bool(torch.equal(*found))


def _batch(spans: Sequence[tuple[int, int]], device: torch.device) -> TorchBatch:
    """A step of requests that compute these positions; all have the same blocks."""
    positions = np.concatenate([np.arange(*span) for span in spans])
    counts = [stop - start for start, stop in spans]
    lengths = np.array([stop for _, stop in spans])
    blocks = np.arange(-(-int(lengths.max()) // _BLOCK_SIZE))
    batch = ForwardBatch(
        token_ids=positions,
        positions=positions,
        rope_lens=positions + 1,
        slot_mapping=positions[None],
        query_start=np.cumsum([0, *counts]),
        seq_lens=lengths,
        block_tables=np.broadcast_to(blocks, (1, len(spans), len(blocks))),
        logits_indices=np.arange(0),
        state_slots=np.zeros(len(spans), np.int64),
    )
    return TorchBatch.of(batch, device)


def _recurrence_is_right(plain: TorchOps, choice: KernelChoice, shape: tuple[int, int]) -> bool:
    """Likewise a convolution and a delta net over a text, whole and token by token."""
    ops, rng = TritonOps(plain.device, plain.sizes, choice), np.random.default_rng(0)
    length, net = 9, GatedDeltaNetConfig(1, 2, _HEAD_DIM, 40, 4)
    width = 2 * net.keys_width + net.values_width

    def normal(*own: int) -> Tensor:
        return to_device(rng.standard_normal(own, np.float32), ops.device)

    x, b, a = normal(length, width), normal(length, 2), normal(length, 2)
    weight, log_decay, step_bias = normal(net.kernel_size * width), -normal(2).abs(), normal(2)

    def run(each: TorchOps, cuts: Sequence[int]) -> tuple[Tensor, Tensor]:
        layer = TorchStateLayer(
            torch.full((1, net.kernel_size - 1, width), torch.nan, device=ops.device),
            torch.full((1, 2, net.key_dim, net.value_dim), torch.nan, device=ops.device),
        )
        convolved, heads = [], []
        for start, stop in itertools.pairwise(cuts):
            batch, own = _batch([(start, stop)], ops.device), slice(start, stop)
            qkv = each.causal_convolution(x[own], weight, None, layer, batch, "silu")
            facts = qkv, b[own], a[own], log_decay, step_bias
            convolved.append(qkv)
            heads.append(each.gated_delta_net(*facts, net, layer, batch))
        return torch.cat(convolved), torch.cat(heads)

    whole = 0, length
    every, wanted, alone = run(ops, whole), run(plain, whole), run(ops, range(length + 1))
    return all(map(_is_close, every, wanted)) and all(map(torch.equal, every, alone))


def _draws_are_right(plain: TorchOps, choice: KernelChoice, shape: tuple[int, int]) -> bool:
    """Whether weights and winners are those of plain PyTorch, bit for bit."""
    rng, rows, device = np.random.default_rng(0), 4, plain.device
    kernels = TritonOps(device, plain.sizes, choice).draws
    logits = to_device(8 * rng.standard_normal((rows, shape[1]), np.float32), device)
    facts = logits, logits.amax(dim=1), logits.new_full((rows, 1), 1.5)
    weights = kernels.weights(*facts)
    words = rng.integers(0, 1 << 32, (4, rows, 1))
    keys = NoiseKeys(*(to_device(each, device) for each in words))
    return bool(
        torch.equal(weights, plain.draws.weights(*facts))
        and torch.equal(kernels.race(weights, keys), plain.draws.race(weights, keys))
    )


def _kv_layers(num_blocks: int, device: torch.device) -> Iterator[TorchKVLayer]:
    attention = AttentionConfig(_HEADS, _KV_HEADS, _HEAD_DIM, 1.0, None)
    layer = LayerConfig(attention, MLPConfig(1, "silu"))
    config = ModelConfig("check", 1, 1, (layer,), 1, 1e-6)
    for name in _CACHES:
        cache = make_torch_kv_cache(config, num_blocks, _BLOCK_SIZE, name, 1, device)
        (own,) = cache.layers
        assert isinstance(own, TorchKVLayer)
        yield own


def _is_close(found: Tensor, plain: Tensor) -> bool:
    return bool((found - plain).norm() <= _CLOSE * plain.norm())  # a NaN is not


_CHECKS: dict[KernelName, Callable[[TorchOps, KernelChoice, tuple[int, int]], bool]] = {
    "linear": _linear_is_right,
    "attention": _attention_is_right,
    "rows": _rows_are_right,
    "experts": _experts_are_right,
    "recurrence": _recurrence_is_right,
    "draws": _draws_are_right,
}
