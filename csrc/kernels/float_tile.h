// Linear layers with sums in f32, in register tiles: sums over k in order.
#pragma once

#include <cstdint>

#include "float_weights.h"
#include "linear_tiles.h"

namespace pellucid {
namespace {

// Weights is a struct of float_weights.h.
template <class S, class Weights>
struct FloatTile {
  static constexpr FormatInfo kInfo = format_info(Weights::kFormat);
  static constexpr int kMaxRows = S::kMaxFloatRows;

  // Steps of the StreamPrefetcher.
  static std::int64_t num_steps(const PackedView& w, int num_rows) {
    const std::int64_t num_strides = (w.num_tiles + kStrideTiles - 1) / kStrideTiles;
    return num_strides * (kPanelOutputs / (S::float_vectors(num_rows) * S::kLanes));
  }

  template <int kRows>
  static void run(const PackedView& w, const Panels& panels, const PreparedRows& rows,
                  std::int64_t row, StreamPrefetcher& ahead, const LinearOutput& output) {
    constexpr int kVectors = S::float_vectors(kRows);
    for (int column = 0; column < kPanelOutputs; column += kVectors * S::kLanes) {
      run_columns<kRows, kVectors>(w, panels, column, rows, row, ahead, output);
    }
  }

 private:
  static constexpr int kStepFactors = Weights::kStepFactors;
  static constexpr int kFactorInputs = Weights::kFactorInputs;
  static constexpr int kStepInputs = kStepFactors * kFactorInputs;
  static constexpr int kStepBytes = kPanelOutputs * kStepInputs * kInfo.weight_bits / 8;
  static constexpr int kTileSteps = kInfo.tile_inputs / kStepInputs;
  // Tiles between two prefetches: where a tile has one input or two, prefetching at each tile would
  // cost measurable time.
  static constexpr int kStrideTiles = kInfo.tile_inputs < 16 ? 16 / kInfo.tile_inputs : 1;

  template <int kRows, int kVectors>
  static void run_columns(const PackedView& w, const Panels& panels, int column,
                          const PreparedRows& rows, std::int64_t row, StreamPrefetcher& ahead,
                          const LinearOutput& output) {
    constexpr std::int64_t kMaxPanels = max_panels(kRows);
    const std::int64_t num_panels = kMaxPanels == 1 ? 1 : panels.count;
    const std::uint8_t* const begin = w.panels + panels.first * w.panel_bytes;
    const auto* const x =
        static_cast<const typename Weights::Input*>(rows.values) + row * rows.stride;

    typename S::F32 sums[kMaxPanels][kRows][kVectors];
    for (std::int64_t p = 0; p < num_panels; ++p) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sums[p][r][v] = S::zero();
      }
    }
    for (std::int64_t t = 0; t < w.num_tiles; t += kStrideTiles) {
      ahead.step();
      const std::int64_t end = t + kStrideTiles < w.num_tiles ? t + kStrideTiles : w.num_tiles;
      for (std::int64_t p = 0; p < num_panels; ++p) {
        add_tiles<kRows, kVectors>(w, begin + p * w.panel_bytes, t, end, column, x, rows.stride,
                                   sums[p]);
      }
    }
    for (std::int64_t p = 0; p < num_panels; ++p) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          write_outputs<S>(sums[p][r][v], row + r,
                           (panels.first + p) * kPanelOutputs + column + v * S::kLanes,
                           w.num_outputs, output);
        }
      }
    }
  }

  // Adds the products of tiles [first, last) of the panel that begins at `panel` to `sums`.
  template <int kRows, int kVectors>
  static inline __attribute__((always_inline)) void add_tiles(
      const PackedView& w, const std::uint8_t* panel, std::int64_t first, std::int64_t last,
      int column, const typename Weights::Input* x, std::int64_t x_stride,
      typename S::F32 (&sums)[kRows][kVectors]) {
    const std::uint8_t* const tiles_end = panel + w.num_tiles * tile_bytes(kInfo);
    const std::uint8_t* tile = panel + first * tile_bytes(kInfo);
    x += first * kInfo.tile_inputs;
    for (std::int64_t t = first; t < last; ++t) {
      const std::uint8_t* const factors = tiles_end + factors_of_tile(kInfo, t);
      typename Weights::Scale scales[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        scales[v] = Weights::load_scale(tile, factors, column + v * S::kLanes);
      }
      for (int step = 0; step < kTileSteps; ++step) {
        add_step<kRows, kVectors>(tile + step * kStepBytes, column, scales, x, x_stride, sums);
        x += kStepInputs;
      }
      tile += tile_bytes(kInfo);
    }
  }

  template <int kRows, int kVectors>
  static inline __attribute__((always_inline)) void add_step(
      const std::uint8_t* step, int column, const typename Weights::Scale (&scales)[kVectors],
      const typename Weights::Input* x, std::int64_t x_stride,
      typename S::F32 (&sums)[kRows][kVectors]) {
    typename Weights::Factor factors[kVectors][kStepFactors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Weights::load(step, column + v * S::kLanes, scales[v], factors[v]);
    }
#pragma GCC unroll 8
    for (int f = 0; f < kStepFactors; ++f) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const typename Weights::Factor factor =
            Weights::broadcast(x + r * x_stride + f * kFactorInputs);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = Weights::multiply_add(sums[r][v], factors[v][f], factor);
        }
      }
    }
  }
};

}  // namespace
}  // namespace pellucid
