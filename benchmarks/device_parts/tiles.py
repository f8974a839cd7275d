"""The part that looks for the fastest tiles of the kernels in Triton."""

import itertools
from collections.abc import Iterator
from typing import Any

from device_parts.common import FORMATS, PRODUCTS, Row, seconds_of, stored
from device_parts.speed import HEADS, paged_keys


def tune(device: str) -> Iterator[Row]:
    """The fastest tiles of each kernel, as `KernelChoice` takes them."""
    if device != "cuda":
        yield Row("tune", "", "kernels in Triton need CUDA")
        return
    from pellucid.backends.torch.backend import TorchBackend

    backend = TorchBackend(device)
    yield from _products(backend)
    yield from _attention(backend)


def _products(backend: Any) -> Iterator[Row]:
    import numpy as np
    import torch

    from pellucid.backends.torch.triton.linear import LinearLaunch, LinearTile

    num_outputs, num_inputs = PRODUCTS["8B"]
    weight = np.random.default_rng(0).standard_normal((num_outputs, num_inputs), np.float32)
    for name in FORMATS:
        launch = LinearLaunch.of(backend.weights.matrix(stored(backend, weight, name)))
        assert launch is not None
        for num_rows in (1, 16, 64, 256, 2048):
            x = torch.randn((num_rows, num_inputs), device=backend.device)
            sizes = itertools.product((32, 64, 128), (16, 32, 64, 128), (4, 8), (2, 3, 4, 5))
            tiles = [LinearTile(num_rows, *size) for size in sizes if size[1] < 4 * num_rows + 16]
            yield Row("tune", f"{name}, {num_rows} rows", _fastest(launch.run, x, tiles))


def _attention(backend: Any) -> Iterator[Row]:
    import torch

    from pellucid.backends.torch.triton.attention import AttentionTile, attend

    for num_requests, length, depth in ((1, 1, 8192), (64, 1, 8192), (1, 2048, 2048)):
        layer, batch = paged_keys(backend, num_requests, length, depth)
        q = torch.randn((num_requests * length, HEADS[0], HEADS[2]), device=backend.device)
        sizes = itertools.product((16, 32, 64), (4, 8), (1, 2, 3, 4))
        tiles = [AttentionTile(1 << 30, *size) for size in sizes]

        def run(x: Any, tile: Any, layer: Any = layer, batch: Any = batch) -> Any:
            facts = 0.1, None, None, None
            return attend(x, layer, batch, *facts, tile, backend.ops.choice.attention)[0]

        what = f"attention, {num_requests} x {length}, {depth} keys"
        yield Row("tune", what, _fastest(run, q, tiles))


def _fastest(run: Any, x: Any, tiles: Any) -> str:
    """The best two, and what they take."""

    def seconds(tile: Any) -> float:
        try:
            return seconds_of(lambda: run(x, tile))
        except Exception:  # too much shared memory, or too many registers
            return float("inf")

    best = sorted((seconds(tile), tile) for tile in tiles)[:2]
    return "; ".join(f"{tuple(tile)} {own * 1e6:.0f} us" for own, tile in best)
