// Cuts the rows of a linear layer into register tiles, and writes their results: shared by all
// linear kernels.
#pragma once

#include <cstdint>

#include "linear_kernels.h"
#include "stream_prefetcher.h"

namespace pellucid {
namespace {

// Writes the outputs [column, column + kLanes) of a row that the matrix has.
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

// Neighbouring panels that a tile of rows computes side by side.
struct Panels {
  std::int64_t first;
  std::int64_t count;  // at most max_panels(rows of the tile)
};

// More rows than one take one panel at a time: the sums of several panels would not fit in
// registers, and arithmetic bounds them.
constexpr std::int64_t max_panels(std::int64_t num_rows) {
  return num_rows == 1 ? kPanelsAbreast : 1;
}

// Calls Tile::run<rows> with the number of rows made a constant.
template <class Tile, int kRows = Tile::kMaxRows, class Prefetcher>
void run_tile(std::int64_t num_rows, const PackedView& w, const Panels& panels,
              const PreparedRows& rows, std::int64_t row, Prefetcher& ahead,
              const LinearOutput& output) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) {
      return run_tile<Tile, kRows - 1>(num_rows, w, panels, rows, row, ahead, output);
    }
  }
  Tile::template run<kRows>(w, panels, rows, row, ahead, output);
}

// Bytes of a block of weights, which each tile of rows reads from the second-level cache; at least
// one panel.
constexpr std::int64_t kBlockBytes = 64 << 10;

// Most bytes of the second-level cache for two blocks: three quarters of a megabyte.
constexpr std::int64_t kTwoBlocksBytes = 768 << 10;

// Phase 2. A block of panels comes from memory once. Each tile of rows reads it again from the
// second-level cache, while the tile itself stays in the first-level cache. Tiles have even sizes:
// eight rows are 4 + 4, not 6 + 2. Each tile prefetches its share of the next block, so that memory
// is busy during all tiles and not only during the first. A single tile reads memory in order,
// which the processor's own prefetcher follows; a single row several panels side by side.
template <class Tile, class Prefetcher = StreamPrefetcher>
void compute_panels(const PackedView& w, const PreparedRows& rows, std::int64_t row_begin,
                    std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end,
                    const LinearOutput& output) {
  const std::int64_t num_panels = (w.num_outputs + kPanelOutputs - 1) / kPanelOutputs;
  const std::int64_t num_row_tiles = (row_end - row_begin + Tile::kMaxRows - 1) / Tile::kMaxRows;
  const std::int64_t abreast = max_panels(row_end - row_begin);
  const std::int64_t block_steps = kBlockBytes / (w.panel_bytes * abreast);
  const std::int64_t block = (block_steps > 1 ? block_steps : 1) * abreast;
  const bool looks_ahead = num_row_tiles > 1 && 2 * block * w.panel_bytes <= kTwoBlocksBytes;
  const std::int64_t share = (w.panel_bytes + num_row_tiles - 1) / num_row_tiles;
  for (std::int64_t begin = panel_begin; begin < panel_end; begin += block) {
    const std::int64_t end = begin + block < panel_end ? begin + block : panel_end;
    std::int64_t row = row_begin;
    for (std::int64_t tile = 0; tile < num_row_tiles; ++tile) {
      const std::int64_t tile_rows = (row_end - row) / (num_row_tiles - tile);
      for (std::int64_t panel = begin; panel < end; panel += abreast) {
        const bool has_next = looks_ahead && panel + block < num_panels;
        const std::int64_t next = has_next ? panel + block : panel;
        Prefetcher ahead(w.panels + next * w.panel_bytes + tile * share, has_next ? share : 0,
                         Tile::num_steps(w, static_cast<int>(tile_rows)));
        const Panels panels{panel, abreast < end - panel ? abreast : end - panel};
        run_tile<Tile>(tile_rows, w, panels, rows, row, ahead, output);
      }
      row += tile_rows;
    }
  }
}

}  // namespace
}  // namespace pellucid
