"""The part that looks for the fastest tiles of the kernels in Triton, and writes them into the package's table.

Processes compile all kernels first, then this one times them: what they compiled is in Triton's cache.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from device_parts.common import Row
from device_parts.speed import HEADS, paged_keys

TABLE = Path(__file__).parents[2] / "src/pellucid/backends/torch/triton/tiles.json"
_CODES = ("int8", "int4")  # of which a tile has to serve both
# Rows of a step for which tiles are sought, and up to how many these tiles are then taken.
_ROWS = {1: 16, 64: 64, 256: 256, 2048: 2048}
# Outputs and inputs of matrices, and up to how many outputs their tiles are then taken.
_SHAPES = {(1024, 1024): 2048, (4096, 4096): 6144, (24576, 4096): 24576}
# Requests, their positions in the step, keys; query heads of a kv-head at these positions.
_ATTENTION = ((64, 1, 8192), (1, 2048, 2048))
_PROCESSES, _COMPILE_SECONDS = 10, 24.0
_PRODUCT_SECONDS, _ATTENTION_SECONDS = 16.0, 5.0  # of all products, and of attention
_COLD_BYTES = 120 << 20  # of copies of a matrix, that no cache holds


def tune(device: str) -> Iterator[Row]:
    """The fastest tiles of each kernel, as far as there was time; the others stay as they are in the table."""
    if device != "cuda":
        yield Row("tune", "", "kernels in Triton need CUDA")
        return
    yield Row("tune", "compiled", _compile())
    import torch

    from pellucid.backends.torch.device import device_name
    from pellucid.backends.torch.triton.tiles import Tiles, fastest, fastest_by_outputs

    chip = device_name(torch.device(device))
    tiles = Tiles.of(chip)
    products: dict[str, Any] = {"numbers": {}, "codes": {}}
    end = time.monotonic() + _PRODUCT_SECONDS
    # Decode first, and wide matrices first.
    for rows, shape in itertools.product(_ROWS, reversed(_SHAPES)):
        for kind, names in (("codes", _CODES), ("numbers", ("bf16",))):
            found = _guarded(partial(_product_seconds, kind, names, shape, rows, end))
            if found:
                products[kind][_ROWS[rows], _SHAPES[shape]] = found
                yield _best(f"{kind}, {rows} rows, {shape[0]}x{shape[1]}", found)
    for kind, every in products.items():
        widths = _SHAPES.values()
        whole = [rows for rows in _ROWS.values() if all((rows, n) in every for n in widths)]
        if len(whole) > 1:
            own = {key: seconds for key, seconds in every.items() if key[0] in whole}
            tiles = tiles._replace(**{kind: fastest_by_outputs(own)})
    _write(chip, tiles)
    attention = _guarded(_attention_seconds)
    for rows, seconds in attention.items():
        yield _best(f"attention, {rows} rows", seconds)
    if len(attention) == len(_ATTENTION):
        tiles = tiles._replace(attention=fastest(attention))
    _write(chip, tiles)
    yield Row("tune", TABLE.name, f"has the tiles of {chip}: commit it")


def _write(chip: str, tiles: Any) -> None:
    from pellucid.backends.torch.triton.tiles import with_chip

    TABLE.write_text(with_chip(TABLE.read_text("utf-8"), chip, tiles), "utf-8")


def _best(what: str, seconds: Mapping[Any, float]) -> Row:
    """The best three."""
    best = sorted(seconds, key=seconds.__getitem__)[:3]
    found = "; ".join(f"{tuple(tile)[1:5]} {seconds[tile] * 1e6:.1f} us" for tile in best)
    return Row("tune", what, found)


def _guarded(run: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    try:
        return run()
    except Exception:
        traceback.print_exc()
        return {}


def _compile() -> str:
    """All kernels, by processes that each have a share of them."""
    started = time.monotonic()
    path = os.pathsep.join([str(TABLE.parents[4]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(i)], env=environment)
        for i in range(_PROCESSES)
    ]
    end = started + _COMPILE_SECONDS
    while time.monotonic() < end and any(each.poll() is None for each in processes):
        time.sleep(0.1)
    late = [each for each in processes if each.poll() is None]
    for process in late:
        process.kill()
    seconds = time.monotonic() - started
    return f"{seconds:.0f} s, {len(late)} of {_PROCESSES} processes had to be ended"


def _product_tiles(kind: str, rows: int) -> list[Any]:
    from pellucid.backends.torch.triton.tiles import LinearTile

    has_codes = kind == "codes"
    sizes: list[tuple[int, int, int, int]]
    if rows <= 16:
        sides = (64, 4), (64, 2), (32, 2), (32, 1), (16, 1), (16, 2)
        stages = (3, 5) if has_codes else (4, 6, 8)
        sizes = [(outputs, 16, warps, n) for (outputs, warps) in sides for n in stages]
    elif rows <= 64:
        sides = (64, 4), (64, 8), (32, 4), (32, 2), (16, 2)
        stages = (3, 4) if has_codes else (4, 6)
        sizes = [(outputs, 64, warps, n) for (outputs, warps) in sides for n in stages]
    else:
        sizes = [(64, 64, 4, 4), (64, 128, 8, 3), (64, 128, 4, 4), (128, 128, 8, 3)]
        sizes += [(128, 256, 8, 2 if has_codes else 4), (128, 256, 8, 3), (256, 128, 8, 2)]
        sizes += [(128, 128, 4, 3)]
        sizes += [] if has_codes else [(128, 128, 8, 4), (256, 128, 8, 3)]
    return [LinearTile(0, *each) for each in sizes]


def _launch(name: str, num_outputs: int, num_inputs: int) -> Any:
    """A matrix of any numbers."""
    import torch

    from pellucid.backends.quantization.formats import FORMATS
    from pellucid.backends.torch.triton.linear import LinearLaunch, linear_constants

    shape, weight_format = (num_outputs, num_inputs), FORMATS.get(name)
    if weight_format is None:
        weight = torch.randn(shape, device="cuda").bfloat16()
        return LinearLaunch(weight, {}, linear_constants(None))
    arrays = {}
    for key, (dtype, own) in weight_format.arrays(*shape).items():
        like = getattr(torch, dtype.name)
        arrays[key] = (
            torch.rand(own, device="cuda").to(like)
            if like.is_floating_point
            else torch.randint(0, 100, own, device="cuda").to(like)
        )
    codes = arrays["codes"].view(torch.int32)
    return LinearLaunch(codes, arrays, linear_constants(weight_format))


def _product_seconds(
    kind: str, names: tuple[str, ...], shape: tuple[int, int], rows: int, end: float
) -> dict[Any, float]:
    """Of a product of each format, together, by tile; of those that work."""
    import torch

    total: dict[Any, float] = {}
    for i, name in enumerate(names):
        first = _launch(name, *shape)
        num_bytes = sum(each.nbytes for each in (*first.arrays.values(), first.stored))
        copies = [first, *(_launch(name, *shape) for _ in range(min(24, _COLD_BYTES // num_bytes)))]
        x = torch.randn((rows, shape[1]), device="cuda")
        for tile in _product_tiles(kind, rows):
            if time.monotonic() > end or (i and tile not in total):
                total.pop(tile, None)
                continue
            try:
                seconds = _graph_seconds([partial(each.run, x, tile) for each in copies])
            except Exception:  # too much shared memory, or too many registers
                total.pop(tile, None)
            else:
                total[tile] = total.get(tile, 0.0) + seconds
    return total


def _graph_seconds(runs: list[Callable[[], Any]]) -> float:
    """Of a run, among runs of one graph: the host's time for launches is not in it."""
    import torch

    runs[0]()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    graph.replay()
    return _event_seconds(graph.replay) / len(runs)


def _event_seconds(run: Callable[[], Any]) -> float:
    """The median of three."""
    import torch

    found = []
    for _ in range(3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        found.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(found)


def _attention_tiles(length: int) -> list[Any]:
    from pellucid.backends.torch.triton.tiles import AttentionTile

    sides = (16,) if length == 1 else (64, 128)
    warps = (2, 4, 8) if length == 1 else (4, 8)
    stages = (2, 3, 4) if length == 1 else (2, 3, 5)
    return [AttentionTile(0, *size) for size in itertools.product(sides, warps, stages)]


def _attention_seconds(only: Callable[[int], bool] | None = None) -> dict[int, dict[Any, float]]:
    """Of attention with each tile, by the rows of a request.

    Args:
        only: whether the tile of this number is run, once: nothing is timed then.
    """
    import torch

    from pellucid.backends.torch.batch import TorchBatch
    from pellucid.backends.torch.triton.attention import attend, sizes_for

    device = torch.device("cuda")
    backend = SimpleNamespace(device=device, batch=lambda batch: TorchBatch.of(batch, device))
    (num_heads, num_kv_heads, head_dim), sizes = HEADS, sizes_for(device)
    number, end, seconds = itertools.count(), time.monotonic() + _ATTENTION_SECONDS, {}
    for num_requests, length, depth in _ATTENTION:
        layer, batch = paged_keys(backend, num_requests, length, depth)
        q = torch.randn((num_requests * length, num_heads, head_dim), device=device)
        own = {}
        for tile in _attention_tiles(length):
            if (only is not None and not only(next(number))) or (
                only is None and time.monotonic() > end
            ):
                continue

            def run(tile: Any = tile, q: Any = q, layer: Any = layer, batch: Any = batch) -> Any:
                return attend(q, layer, batch, 0.1, None, None, None, tile, sizes)

            try:
                run()
                own[tile] = 0.0 if only else _event_seconds(run)
            except Exception:
                if only is None:
                    traceback.print_exc()
        if own:
            seconds[max(16, length * num_heads // num_kv_heads)] = own
    return seconds


def _compile_share(share: int) -> None:
    """Of small matrices: a kernel does not depend on the size."""
    import torch

    every = [
        (name, rows, tile)
        for rows in _ROWS
        for name in (*_CODES, "bf16")
        for tile in _product_tiles("numbers" if name == "bf16" else "codes", rows)
    ]
    for name, rows, tile in every[share::_PROCESSES]:
        launch = _launch(name, 64, 4096)
        try:
            launch.run(torch.randn((rows, 4096), device="cuda"), tile)
        except Exception as error:
            print(f"{name} {tuple(tile)[1:5]}: {str(error)[-150:]}", file=sys.stderr)
    _guarded(lambda: _attention_seconds(lambda i: i % _PROCESSES == share))
    torch.cuda.synchronize()


if __name__ == "__main__":
    _compile_share(int(sys.argv[1]))
