"""The tiles of kernels, by chip: a table that `benchmarks/device_check.py --parts tune` writes.

A tile changes no bit, only time. tiles.json has, for each chip as PyTorch calls it, lists of tiles in ascending order
of the rows, then of the outputs for which they are taken, the first and the last number of a tile; null: any number.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

ANY_CHIP = "any"  # those of chips on which nobody measured
_ANY = 1 << 30
_SLOWER = 1.04


class LinearTile(NamedTuple):
    """The work of a program of the kernels of products.

    Attributes:
        most_rows: of a step, or of an expert, for which the tile is taken.
        outputs, rows: that a program computes.
        num_warps, num_stages: of Triton.
        most_outputs: of a step's matrices, for which the tile is taken: of few outputs, narrow tiles keep more of a
            chip's processors busy.
    """

    most_rows: int
    outputs: int
    rows: int
    num_warps: int
    num_stages: int
    most_outputs: int = _ANY


class AttentionTile(NamedTuple):
    """The work of a program of `attention_kernel`.

    Attributes:
        most_rows: query heads of a kv-head at all positions that a request has in the step; up to as many the tile is
            taken.
        rows: that a program computes.
        num_warps, num_stages: of Triton.
    """

    most_rows: int
    rows: int
    num_warps: int
    num_stages: int


AnyTile = TypeVar("AnyTile", LinearTile, AttentionTile)


class Tiles(NamedTuple):
    """Those of a chip, each in ascending order of `most_rows`, then of `most_outputs`.

    Attributes:
        numbers: of products with matrices of bf16.
        codes: of products with matrices of codes.
        attention: the first one serves caches of codes alone.
    """

    numbers: tuple[LinearTile, ...]
    codes: tuple[LinearTile, ...]
    attention: tuple[AttentionTile, ...]

    @classmethod
    def of(cls, chip: str) -> "Tiles":
        """Those of a chip, or of any one."""
        every = read_table()
        return every.get(chip, every[ANY_CHIP])


def read_table() -> Mapping[str, Tiles]:
    """Of each chip."""
    text = files("pellucid.backends.torch.triton").joinpath("tiles.json").read_text("utf-8")
    return {chip: _read(table) for chip, table in json.loads(text).items()}


def with_chip(text: str, chip: str, tiles: Tiles) -> str:
    """The text of a table, in which a chip has these tiles."""
    table = json.loads(text)
    table[chip] = {kind: [_stored(each) for each in own] for kind, own in tiles._asdict().items()}
    chips = (f" {json.dumps(name)}: {_lines(own)}" for name, own in table.items())
    return "{\n" + ",\n".join(chips) + "\n}\n"


def fastest(seconds: Mapping[int, Mapping[AnyTile, float]]) -> tuple[AnyTile, ...]:
    """The fastest tile for each number of rows, as a list of `Tiles`; neighbours that are alike are one.

    Args:
        seconds: by rows, of tiles whose `most_rows` means nothing.
    """
    chosen: list[AnyTile] = []
    counts = sorted(seconds)
    for count in counts:
        most, own = _ANY if count == counts[-1] else count, seconds[count]
        tile = min(own, key=own.__getitem__)
        if chosen and chosen[-1][1:] == tile[1:]:
            del chosen[-1]
        chosen.append(tile._replace(most_rows=most))
    return tuple(chosen)


def fastest_by_outputs(
    seconds: Mapping[tuple[int, int], Mapping[LinearTile, float]],
) -> tuple[LinearTile, ...]:
    """As `fastest`, by rows and outputs, with the same outputs for all rows; tiles' `most_outputs` means nothing.

    Tiles are few, since each is compiled and checked at start: one may take `_SLOWER` times as long as the fastest.
    """
    left, chosen = dict(seconds), dict[tuple[int, int], LinearTile]()
    while left:
        close = {
            key: {tile for tile in own if own[tile] <= _SLOWER * min(own.values())}
            for key, own in left.items()
        }
        every = sorted(set().union(*close.values()))
        tile = max(every, key=lambda each: sum(each in own for own in close.values()))
        for key in [each for each, own in close.items() if tile in own]:
            chosen[key] = tile
            del left[key]
    by_rows: list[list[LinearTile]] = []
    row_counts, widths = (sorted({key[i] for key in seconds}) for i in (0, 1))
    for count in row_counts:
        most_rows = _ANY if count == row_counts[-1] else count
        own = fastest({width: {chosen[count, width]: 0.0} for width in widths})
        tiles = [each._replace(most_rows=most_rows, most_outputs=each.most_rows) for each in own]
        if by_rows and [each[1:] for each in by_rows[-1]] == [each[1:] for each in tiles]:
            del by_rows[-1]
        by_rows.append(tiles)
    return tuple(tile for tiles in by_rows for tile in tiles)


def tile_of_product(num_rows: float, num_outputs: int, tiles: Sequence[LinearTile]) -> LinearTile:
    """The tile for so many rows and outputs; of one tile it is that."""
    return tile_for(num_rows, [each for each in tiles if num_outputs <= each.most_outputs] or tiles)


def tile_for(num_rows: float, tiles: Sequence[AnyTile]) -> AnyTile:
    """The tile for so many rows."""
    return next((each for each in tiles if num_rows <= each.most_rows), tiles[-1])


def _read(table: Mapping[str, Any]) -> Tiles:
    def tiles(kind: type[AnyTile], lists: Iterable[Any]) -> tuple[AnyTile, ...]:
        return tuple(kind(*(_ANY if each is None else each for each in own)) for own in lists)

    numbers, codes = (tiles(LinearTile, table[name]) for name in ("numbers", "codes"))
    return Tiles(numbers, codes, tiles(AttentionTile, table["attention"]))


def _stored(tile: LinearTile | AttentionTile) -> list[int | None]:
    return [None if each == _ANY else each for each in tile]


def _lines(table: Mapping[str, Any]) -> str:
    rows = (f"  {json.dumps(kind)}: {json.dumps(tiles)}" for kind, tiles in table.items())
    return "{\n" + ",\n".join(rows) + "\n }"
