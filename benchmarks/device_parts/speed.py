"""Parts that measure the device and single ops, as shares of its limits and beside libraries."""

from collections.abc import Iterator
from typing import Any

from device_parts.common import FORMATS, PRODUCTS, Row, as_share, seconds_of, stored

HEADS = (32, 8, 128)  # query heads, kv-heads and numbers of a head of an 8B
# Requests, their positions in the step, and keys.
ATTENTION = ((1, 1, 512), (1, 1, 8192), (64, 1, 512), (64, 1, 8192), (1, 2048, 2048))


def ceilings(device: str) -> Iterator[Row]:
    """The machine, its memory and its ceilings."""
    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    machine = backend.measure(None)
    yield Row("machine", "identity", backend.identity)
    yield Row("machine", "free memory", f"{(backend.available_memory() or 0) / 1e9:.1f} GB")
    yield Row("machine", "bandwidth", f"{machine.bandwidth_bytes_per_second / 1e9:.3g} GB/s")
    yield Row("machine", "peak in bf16", f"{machine.peak_bf16_flops / 1e12:.3g} TFLOP/s")
    yield Row("machine", "peak in f32", f"{machine.peak_f32_flops / 1e12:.3g} TFLOP/s")


def products(device: str) -> Iterator[Row]:
    """Products of one row and of 64, as shares of the device's bandwidth, beside the library's own in bf16."""
    import numpy as np
    import torch

    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    bandwidth = backend.measure(None).bandwidth_bytes_per_second
    rng = np.random.default_rng(0)
    for size, (num_outputs, num_inputs) in PRODUCTS.items():
        weight = rng.standard_normal((num_outputs, num_inputs), np.float32)
        library = backend.ops.from_host(weight).to(torch.bfloat16)
        for num_rows in (1, 64):
            x = backend.ops.from_host(rng.standard_normal((num_rows, num_inputs), np.float32))
            half = x.to(torch.bfloat16)
            seconds = seconds_of(lambda half=half, library=library: half @ library.t())
            found = as_share(seconds, library.nbytes, bandwidth)
            yield Row("products", f"{size}, {num_rows} rows, library in bf16", found)
            for name in FORMATS:
                matrix = stored(backend, weight, name)
                handle = backend.weights.matrix(matrix)
                num_bytes = getattr(matrix, "num_bytes", getattr(matrix, "nbytes", 0))
                seconds = seconds_of(lambda x=x, handle=handle: backend.ops.linear(x, handle))
                found = as_share(seconds, num_bytes, bandwidth)
                yield Row("products", f"{size}, {num_rows} rows, {name}", found)


def attention(device: str) -> Iterator[Row]:
    """Paged attention beside SDPA over keys and values without blocks, of one query and of a prompt, in bf16."""
    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    bandwidth = backend.measure(None).bandwidth_bytes_per_second
    for step in ATTENTION:
        num_requests, length, depth = step
        own, theirs, num_bytes = _attention_seconds(backend, *step)
        what = f"{num_requests} x {length} queries, {depth} keys"
        found = as_share(own, num_bytes, bandwidth)
        yield Row("attention", what, f"{found}; SDPA {theirs * 1e6:.0f} us")


def _attention_seconds(
    backend: Any, num_requests: int, length: int, depth: int
) -> tuple[float, float, int]:
    """Ours, SDPA's, and the bytes of keys and values."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    device, (num_heads, num_kv_heads, head_dim) = backend.device, HEADS
    layer, batch = paged_keys(backend, num_requests, length, depth)
    q = torch.randn((num_requests * length, num_heads, head_dim), device=device)
    own = seconds_of(lambda: backend.ops.paged_attention(q, layer, batch, 0.1)[0])
    by_head = q.bfloat16().reshape(num_requests, length, num_heads, head_dim).transpose(1, 2)
    shape = num_requests, num_kv_heads, depth, head_dim
    k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
    options = {"is_causal": length > 1, "enable_gqa": True}
    theirs = seconds_of(lambda: scaled_dot_product_attention(by_head, k, v, **options)[0, 0])
    return own, theirs, k.nbytes + v.nbytes


def paged_keys(backend: Any, num_requests: int, length: int, depth: int) -> tuple[Any, Any]:
    """Keys and values in bf16, in blocks in no order, and a step of the last `length` positions of each request."""
    import numpy as np
    import torch

    from pellucid.backends.ops import ForwardBatch
    from pellucid.backends.torch.kv_cache import TorchKVLayer, TorchRows

    block_size, (_, num_kv_heads, head_dim) = 32, HEADS
    blocks = np.random.default_rng(0).permutation(num_requests * depth // block_size)
    shape = len(blocks), block_size, num_kv_heads, head_dim
    k, v = (torch.randn(shape, dtype=torch.bfloat16, device=backend.device) for _ in range(2))
    halves = (TorchRows(None, head_dim, (each,)) for each in (k, v))
    positions = np.tile(np.arange(depth - length, depth), num_requests)
    batch = ForwardBatch(
        token_ids=positions,
        positions=positions,
        rope_lens=positions + 1,
        slot_mapping=positions[None],
        query_start=np.arange(num_requests + 1) * length,
        seq_lens=np.full(num_requests, depth),
        block_tables=blocks.reshape(1, num_requests, -1),
        logits_indices=np.arange(0),
        state_slots=np.zeros(num_requests, np.int64),
    )
    return TorchKVLayer(*halves, 0, num_kv_heads, block_size), backend.batch(batch)
