// What every linear kernel shares: how rows are cut into register tiles, and how a tile is written.
#pragma once

#include <cstdint>

#include "linear_kernels.h"

namespace pellucid {
namespace {

// Writes one vector of outputs [column, column + kLanes) of a row, as far as the matrix has them.
template <class S>
void write_outputs(typename S::F32 sum, std::int64_t row, std::int64_t column,
                   std::int64_t num_outputs, const LinearOutput& output) {
  float* const y = output.y + row * output.y_stride + column;
  const std::int64_t count = num_outputs - column;
  if (count >= S::kLanes) {
    if (output.bias != nullptr) sum = S::add(sum, S::load(output.bias + column));
    if (output.add_to_y) sum = S::add(sum, S::load(y));
    S::store(y, sum);
  } else if (count > 0) {
    if (output.bias != nullptr) sum = S::add(sum, S::load_first(output.bias + column, count));
    if (output.add_to_y) sum = S::add(sum, S::load_first(y, count));
    S::store_first(y, sum, count);
  }
}

// Calls Tile::run<rows> with the number of rows made a constant.
template <class Tile, int kRows = Tile::kMaxRows>
void run_tile(std::int64_t num_rows, const PackedView& w, std::int64_t panel,
              const PreparedRows& rows, std::int64_t row, const LinearOutput& output) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) {
      return run_tile<Tile, kRows - 1>(num_rows, w, panel, rows, row, output);
    }
  }
  Tile::template run<kRows>(w, panel, rows, row, output);
}

// Weights that stay in the second-level cache while all rows pass by.
constexpr std::int64_t kBlockBytes = 512 * 1024;

// Phase 2. A block of panels comes from memory once and is reread from the second-level cache by
// each tile of rows, which itself stays in the first while it meets the panels of the block. Tiles
// are of even size: eight rows are 4 + 4, not 6 + 2. There is no software prefetch: measured on Zen
// 4, any distance from 2 KiB to the next block made small batches slower, up to twice for int8.
template <class Tile>
void compute_panels(const PackedView& w, const PreparedRows& rows, std::int64_t row_begin,
                    std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end,
                    const LinearOutput& output) {
  const std::int64_t num_tiles = (row_end - row_begin + Tile::kMaxRows - 1) / Tile::kMaxRows;
  const std::int64_t block = kBlockBytes / w.panel_bytes > 1 ? kBlockBytes / w.panel_bytes : 1;
  for (std::int64_t begin = panel_begin; begin < panel_end; begin += block) {
    const std::int64_t end = begin + block < panel_end ? begin + block : panel_end;
    std::int64_t row = row_begin;
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      const std::int64_t tile_rows = (row_end - row) / (num_tiles - tile);
      for (std::int64_t panel = begin; panel < end; ++panel) {
        run_tile<Tile>(tile_rows, w, panel, rows, row, output);
      }
      row += tile_rows;
    }
  }
}

}  // namespace
}  // namespace pellucid
