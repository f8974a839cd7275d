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
  static void run(const PackedView& w, std::int64_t panel, const PreparedRows& rows,
                  std::int64_t row, StreamPrefetcher& ahead, const LinearOutput& output) {
    constexpr int kVectors = S::float_vectors(kRows);
    for (int column = 0; column < kPanelOutputs; column += kVectors * S::kLanes) {
      run_columns<kRows, kVectors>(w, panel, column, rows, row, ahead, output);
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
  static void run_columns(const PackedView& w, std::int64_t panel, int column,
                          const PreparedRows& rows, std::int64_t row, StreamPrefetcher& ahead,
                          const LinearOutput& output) {
    const std::uint8_t* tile = w.panels + panel * w.panel_bytes;
    const std::uint8_t* const tiles_end = tile + w.num_tiles * tile_bytes(kInfo);
    const auto* x = static_cast<const typename Weights::Input*>(rows.values) + row * rows.stride;

    typename S::F32 sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sums[r][v] = S::zero();
    }
    for (std::int64_t t = 0; t < w.num_tiles;) {
      ahead.step();
      const std::int64_t stride_end =
          t + kStrideTiles < w.num_tiles ? t + kStrideTiles : w.num_tiles;
      for (; t < stride_end; ++t) {
        const std::uint8_t* const factors = tiles_end + factors_of_tile(kInfo, t);
        typename Weights::Scale scales[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          scales[v] = Weights::load_scale(tile, factors, column + v * S::kLanes);
        }
        for (int step = 0; step < kTileSteps; ++step) {
          add_step<kRows, kVectors>(tile + step * kStepBytes, column, scales, x, rows.stride, sums);
          x += kStepInputs;
        }
        tile += tile_bytes(kInfo);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        write_outputs<S>(sums[r][v], row + r, panel * kPanelOutputs + column + v * S::kLanes,
                         w.num_outputs, output);
      }
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
