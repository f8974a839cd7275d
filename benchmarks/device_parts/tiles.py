"""The part that looks for the fastest tiles of the kernels in Triton, and writes them into the package's table."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from device_parts.common import PRODUCTS, Row, seconds_of, stored
from device_parts.speed import HEADS, paged_keys

TABLE = Path(__file__).parents[2] / "src/pellucid/backends/torch/triton/tiles.json"
_CODES = ("int8", "int4")  # of which a tile has to serve both
_ROWS = (1, 16, 64, 256, 2048)
# Requests, their positions in the step, keys; query heads of a kv-head at these positions.
_ATTENTION = ((64, 1, 8192), (1, 2048, 2048))


def tune(device: str) -> Iterator[Row]:
    """The fastest tiles of each kernel. They are in the table when all are known."""
    if device != "cuda":
        yield Row("tune", "", "kernels in Triton need CUDA")
        return
    from pellucid.backends.torch.backend import TorchBackend
    from pellucid.backends.torch.device import device_name
    from pellucid.backends.torch.triton.tiles import Tiles, fastest, with_chip

    backend = TorchBackend(device)
    chosen = []
    for kind, names in (("numbers", ("bf16",)), ("codes", _CODES)):
        seconds = {rows: _product_seconds(backend, names, rows) for rows in _ROWS}
        chosen.append(fastest(seconds))
        yield from _rows_of(kind, seconds)
    seconds_of_attention = dict(_attention_seconds(backend))
    yield from _rows_of("attention", seconds_of_attention)
    numbers, codes = chosen
    tiles = Tiles(numbers, codes, fastest(seconds_of_attention))
    chip = device_name(backend.device)
    TABLE.write_text(with_chip(TABLE.read_text("utf-8"), chip, tiles), "utf-8")
    yield Row("tune", TABLE.name, f"has the tiles of {chip}: commit it")


def _rows_of(kind: str, seconds: dict[int, dict[Any, float]]) -> Iterator[Row]:
    """The best two for each number of rows."""
    for rows, own in seconds.items():
        best = sorted(own, key=lambda tile, own=own: own[tile])[:2]  # type: ignore[misc]
        found = "; ".join(f"{tuple(tile)[1:]} {own[tile] * 1e6:.0f} us" for tile in best)
        yield Row("tune", f"{kind}, {rows} rows", found)


def _product_seconds(backend: Any, names: Iterable[str], num_rows: int) -> dict[Any, float]:
    """Of a product of each format, together, with each tile."""
    import numpy as np
    import torch

    from pellucid.backends.torch.triton.linear import LinearLaunch
    from pellucid.backends.torch.triton.tiles import LinearTile

    num_outputs, num_inputs = PRODUCTS["8B"]
    weight = np.random.default_rng(0).standard_normal((num_outputs, num_inputs), np.float32)
    x = torch.randn((num_rows, num_inputs), device=backend.device)
    sizes = itertools.product((32, 64, 128), (16, 32, 64, 128), (4, 8), (2, 3, 4, 5))
    tiles = [LinearTile(0, *size) for size in sizes if size[1] < 4 * num_rows + 16]
    total = dict.fromkeys(tiles, 0.0)
    for name in names:
        launch = LinearLaunch.of(backend.weights.matrix(stored(backend, weight, name)))
        assert launch is not None
        for tile in tiles:
            total[tile] += _seconds(lambda tile=tile, launch=launch: launch.run(x, tile))  # type: ignore[misc]
    return total


def _attention_seconds(backend: Any) -> Iterator[tuple[int, dict[Any, float]]]:
    """Of attention with each tile, by the rows of a request."""
    import torch

    from pellucid.backends.torch.triton.attention import attend
    from pellucid.backends.torch.triton.tiles import AttentionTile

    num_heads, num_kv_heads, head_dim = HEADS
    for num_requests, length, depth in _ATTENTION:
        layer, batch = paged_keys(backend, num_requests, length, depth)
        q = torch.randn((num_requests * length, num_heads, head_dim), device=backend.device)
        tiles = [
            AttentionTile(0, *size)
            for size in itertools.product((16, 32, 64), (4, 8), (1, 2, 3, 4))
        ]

        def run(tile: Any, q: Any = q, layer: Any = layer, batch: Any = batch) -> Any:
            facts = 0.1, None, None, None
            return attend(q, layer, batch, *facts, tile, backend.ops.choice.attention)[0]

        seconds = {tile: _seconds(lambda tile=tile, run=run: run(tile)) for tile in tiles}  # type: ignore[misc]
        yield max(16, length * num_heads // num_kv_heads), seconds


def _seconds(run: Callable[[], Any]) -> float:
    try:
        return seconds_of(run)
    except Exception:  # too much shared memory, or too many registers
        return float("inf")
