"""The table of tiles: what tuning writes is what an engine on that chip reads."""

import json

import pytest

pytest.importorskip("triton")

from importlib.resources import files

from pellucid.backends.torch.triton.tiles import (
    ANY_CHIP,
    AttentionTile,
    LinearTile,
    Tiles,
    fastest,
    fastest_by_outputs,
    read_table,
    tile_for,
    tile_of_product,
    with_chip,
)

SLOW, FAST = LinearTile(0, 64, 16, 4, 2), LinearTile(0, 32, 16, 4, 5)
WIDE = LinearTile(0, 64, 128, 8, 3)


def test_each_number_of_rows_gets_its_fastest_tile():
    seconds = {
        64: {SLOW: 3.0, FAST: 2.0, WIDE: 5.0},
        1: {SLOW: 2.0, FAST: 1.0},
        2048: {SLOW: 9.0, FAST: 8.0, WIDE: 4.0},
    }
    tiles = fastest(seconds)
    assert [each._replace(most_rows=0) for each in tiles] == [FAST, WIDE]  # 1 and 64 have the same
    assert [tile_for(rows, tiles)[1:] for rows in (1, 64, 65, 10**6)] == [
        *(FAST[1:], FAST[1:]),
        *(WIDE[1:], WIDE[1:]),
    ]


def test_each_number_of_rows_and_outputs_gets_one_of_few_fast_tiles():
    seconds = {
        (16, 2048): {SLOW: 2.0, FAST: 1.0, WIDE: 9.0},
        (16, 9999): {SLOW: 1.0, FAST: 1.03, WIDE: 9.0},  # nearly as fast: no tile more
        (64, 2048): {SLOW: 2.0, FAST: 1.0, WIDE: 9.0},
        (64, 9999): {SLOW: 1.5, FAST: 1.0, WIDE: 9.0},
        (99, 2048): {SLOW: 1.0, FAST: 2.0, WIDE: 9.0},
        (99, 9999): {SLOW: 9.0, FAST: 9.0, WIDE: 1.0},
    }
    tiles = fastest_by_outputs(seconds)
    sizes = [each[1:5] for each in tiles]
    assert sizes == [FAST[1:5], SLOW[1:5], WIDE[1:5]]
    for rows, outputs, tile in (
        *((1, 1, FAST), (64, 10**6, FAST), (65, 2048, SLOW), (65, 2049, WIDE)),
        *((10**6, 1, SLOW), (10**6, 10**6, WIDE)),
    ):
        assert tile_of_product(rows, outputs, tiles)[1:5] == tile[1:5]
    assert tile_of_product(1, 10**6, [SLOW._replace(most_outputs=1)])[1:5] == SLOW[1:5]


def test_what_is_written_for_a_chip_is_read_for_it_alone(monkeypatch, tmp_path):
    stored = files("pellucid.backends.torch.triton").joinpath("tiles.json").read_text("utf-8")
    attention = fastest({16: {AttentionTile(0, 16, 4, 1): 1.0}})
    tiles = Tiles(fastest({1: {FAST: 1.0}}), fastest({1: {FAST: 1.0}, 9: {WIDE: 1.0}}), attention)
    written = with_chip(stored, "NVIDIA Fake", tiles)
    (tmp_path / "tiles.json").write_text(written, "utf-8")
    monkeypatch.setattr("pellucid.backends.torch.triton.tiles.files", lambda package: tmp_path)
    assert Tiles.of("NVIDIA Fake") == tiles
    assert Tiles.of("another") == Tiles.of(ANY_CHIP) != tiles
    assert with_chip(written, "NVIDIA Fake", tiles) == written
    assert json.loads(written).keys() == {*json.loads(stored), "NVIDIA Fake"}


def test_tiles_of_the_table_serve_all_rows_and_outputs_in_ascending_order():
    for tiles in read_table().values():
        for own in tiles:
            most = [(each.most_rows, getattr(each, "most_outputs", 1 << 30)) for each in own]
            assert most == sorted(set(most))
            assert {outputs for rows, outputs in most if rows >= 1 << 30} >= {1 << 30}
            # The last one of a number of rows takes all outputs.
            assert all((rows, 1 << 30) in most for rows, _ in most)
