// Linear layers with integer weights and int8 activations, in register tiles.
#pragma once

#include <cstdint>

#include "codebook.h"
#include "int8_codes.h"
#include "linear_tiles.h"

namespace pellucid {
namespace {

// Loads codes of 8 bits from a tile: one load is a quad of inputs.
template <class S>
struct Codes8 {
  static constexpr int kBits = 8;
  static constexpr int kQuads = 1;  // per step
  static constexpr int kZeroPoint = S::kHasSignedCodes ? 0 : 128;

  static void load(const std::uint8_t* p, typename S::Quads (&quads)[kQuads]) {
    quads[0] = S::load_quads_8bit(p);
  }
};

// Loads codes of 4 bits, two in a byte: one load is two quads.
template <class S>
struct Codes4 {
  static constexpr int kBits = 4;
  static constexpr int kQuads = 2;
  static constexpr int kZeroPoint = 8;

  static void load(const std::uint8_t* p, typename S::Quads (&quads)[kQuads]) {
    const typename S::Quads both = S::load_quads(p);
    quads[0] = S::low_nibbles(both);
    quads[1] = S::high_nibbles(both);
  }
};

// Loads codes of 4 bits, and looks their numbers up in a codebook.
template <class S, Codebook kCodebook>
struct CodebookCodes {
  using Numbers = CodebookBytes<kCodebook, !S::kHasSignedCodes>;
  static constexpr int kBits = 8;
  static constexpr int kQuads = 2;
  static constexpr int kZeroPoint = Numbers::kZeroPoint;

  static void load(const std::uint8_t* p, typename S::Quads (&quads)[kQuads]) {
    const typename S::Quads both = S::load_quads(p);
    quads[0] = S::look_up(Numbers::kTable, S::low_nibbles(both));
    quads[1] = S::look_up(Numbers::kTable, S::high_nibbles(both));
  }
};

// Loads codes of 5 or 6 bits: their lower halves as codes of 4 bits, and their upper bits from a
// step behind those of the whole tile.
template <class S, int kCodeBits>
struct CodesWithUpperBits {
  static constexpr int kBits = kCodeBits;
  static constexpr int kQuads = 2;
  static constexpr int kZeroPoint = 1 << (kCodeBits - 1);
  static constexpr int kUpperBits = kCodeBits - 4;

  // The quads of a step; `upper` is what the step behind the tile's codes has for their columns.
  template <int kStep>
  static void load(const std::uint8_t* p, typename S::Quads upper,
                   typename S::Quads (&quads)[kQuads]) {
    const typename S::Quads both = S::load_quads(p);
    constexpr int kFirst = kStep * kQuads * kUpperBits;
    quads[0] = S::template add_upper_bits<kFirst, kUpperBits>(S::low_nibbles(both), upper);
    quads[1] =
        S::template add_upper_bits<kFirst + kUpperBits, kUpperBits>(S::high_nibbles(both), upper);
  }
};

template <class S, int kBits, Codebook kCodebook>
struct CodesOf : CodebookCodes<S, kCodebook> {};
template <class S>
struct CodesOf<S, 5, Codebook::kNone> : CodesWithUpperBits<S, 5> {};
template <class S>
struct CodesOf<S, 6, Codebook::kNone> : CodesWithUpperBits<S, 6> {};
template <class S>
struct CodesOf<S, 8, Codebook::kNone> : Codes8<S> {};
template <class S>
struct CodesOf<S, 4, Codebook::kNone> : Codes4<S> {};

constexpr int kStepBytes = 4 * kPanelOutputs;  // one load of every column

// Adds the products of the quads of a step with kRows rows of codes, which begin at x, to `sums`.
template <class S, class Codes, int kRows, int kVectors>
inline __attribute__((always_inline)) void add_step_products(
    const typename S::Quads (&w)[kVectors][Codes::kQuads], const std::int8_t* x,
    std::int64_t x_stride, typename S::I32 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 2
  for (int q = 0; q < Codes::kQuads; ++q) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename S::Quads quad = S::broadcast_quad(x + r * x_stride + 4 * q);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = S::template dot<Codes::kBits>(sums[r][v], w[v][q], quad);
      }
    }
  }
}

// Adds the products of a tile of weights and of kRows rows of codes to `sums`.
template <class S, class Codes, int kRows, int kVectors>
inline __attribute__((always_inline)) void add_tile_products(
    const std::uint8_t* weights, int num_steps, const std::int8_t* x, std::int64_t x_stride,
    typename S::I32 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int step = 0; step < num_steps; ++step) {
    typename S::Quads w[kVectors][Codes::kQuads];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Codes::load(weights + step * kStepBytes + 4 * S::kLanes * v, w[v]);
    }
    add_step_products<S, Codes>(w, x + 4 * step * Codes::kQuads, x_stride, sums);
  }
}

// Likewise, of codes with upper bits: the steps from kStep on, of kNumSteps.
template <class S, class Codes, int kNumSteps, int kStep, int kRows, int kVectors>
inline __attribute__((always_inline)) void add_upper_tile_products(
    const std::uint8_t* weights, const typename S::Quads (&upper)[kVectors], const std::int8_t* x,
    std::int64_t x_stride, typename S::I32 (&sums)[kRows][kVectors]) {
  if constexpr (kStep < kNumSteps) {
    typename S::Quads w[kVectors][Codes::kQuads];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Codes::template load<kStep>(weights + kStep * kStepBytes + 4 * S::kLanes * v, upper[v], w[v]);
    }
    add_step_products<S, Codes>(w, x + 4 * kStep * Codes::kQuads, x_stride, sums);
    add_upper_tile_products<S, Codes, kNumSteps, kStep + 1>(weights, upper, x, x_stride, sums);
  }
}

// Formats with a scale per group: the sum of a group is exact, then scaled to a float.
template <class S, Format kFormat>
struct GroupTile {
  static constexpr FormatInfo kInfo = format_info(kFormat);
  using Codes = CodesOf<S, kInfo.weight_bits, kInfo.codebook>;
  static constexpr int kMaxRows = S::kMaxGroupRows;
  // The zero point of codes in registers; 1 where each column has its own, a factor then.
  static constexpr int kZeroPoint = kInfo.has_zero_points ? 1
                                    : kInfo.has_minimums && kInfo.weight_bits < 8
                                        ? 0
                                        : Codes::kZeroPoint;

  // Of a StreamPrefetcher.
  static std::int64_t num_steps(const PackedView& w, int num_rows) {
    return w.num_tiles * (kPanelOutputs / (S::quantized_vectors(num_rows) * S::kLanes));
  }

  template <int kRows>
  static void run(const PackedView& w, const Panels& panels, const PreparedRows& rows,
                  std::int64_t row, StreamPrefetcher& ahead, const LinearOutput& output) {
    constexpr int kVectors = S::quantized_vectors(kRows);
    for (int column = 0; column < kPanelOutputs; column += kVectors * S::kLanes) {
      run_columns<kRows, kVectors>(w, panels, column, rows, row, ahead, output);
    }
  }

 private:
  template <int kRows, int kVectors>
  static void run_columns(const PackedView& w, const Panels& panels, int column,
                          const PreparedRows& rows, std::int64_t row, StreamPrefetcher& ahead,
                          const LinearOutput& output) {
    constexpr std::int64_t kMaxPanels = max_panels(kRows);
    const std::int64_t num_panels = kMaxPanels == 1 ? 1 : panels.count;
    const std::uint8_t* tile = w.panels + panels.first * w.panel_bytes;
    const std::uint8_t* const tiles_end = tile + w.num_tiles * tile_bytes(kInfo);
    const std::int8_t* x = static_cast<const std::int8_t*>(rows.values) + row * rows.stride;

    typename S::F32 totals[kMaxPanels][kRows][kVectors];
    for (std::int64_t p = 0; p < num_panels; ++p) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) totals[p][r][v] = S::zero();
      }
    }
    for (std::int64_t g = 0; g < w.num_tiles; ++g) {
      ahead.step();
      const std::uint8_t* const factors = tiles_end + factors_of_tile(kInfo, g);
      for (std::int64_t p = 0; p < num_panels; ++p) {
        add_tile<kRows, kVectors>(tile + p * w.panel_bytes, factors + p * w.panel_bytes, column, x,
                                  rows.stride, totals[p]);
      }
      tile += tile_bytes(kInfo);
      x += kInfo.tile_inputs + group_facts_bytes(kInfo);
    }
    for (std::int64_t p = 0; p < num_panels; ++p) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          write_outputs<S>(totals[p][r][v], row + r,
                           (panels.first + p) * kPanelOutputs + column + v * S::kLanes,
                           w.num_outputs, output);
        }
      }
    }
  }

  // Adds the products of a tile of a panel to `totals`. `factors` points to those of its scales, if
  // it has any.
  template <int kRows, int kVectors>
  static inline __attribute__((always_inline)) void add_tile(
      const std::uint8_t* tile, const std::uint8_t* factors, int column, const std::int8_t* x,
      std::int64_t x_stride, typename S::F32 (&totals)[kRows][kVectors]) {
    constexpr std::int64_t kWeightBytes = tile_weight_bytes(kInfo);
    constexpr int kSteps = kInfo.tile_inputs / (4 * Codes::kQuads);

    typename S::I32 sums[kRows][kVectors];
    start_sums<kRows, kVectors>(tile + zero_points_at(kInfo) + column, x, x_stride, sums);
    if constexpr (has_upper_bits(kInfo)) {
      typename S::Quads upper[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        upper[v] = S::load_quads(tile + kSteps * kStepBytes + 4 * (column + v * S::kLanes));
      }
      add_upper_tile_products<S, Codes, kSteps, 0>(tile + 4 * column, upper, x, x_stride, sums);
    } else {
      add_tile_products<S, Codes, kRows, kVectors>(tile + 4 * column, kSteps, x, x_stride, sums);
    }

    typename S::F32 w_scale[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      w_scale[v] = load_scales<S, kFormat>(tile + kWeightBytes, factors, column + v * S::kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename S::F32 x_scale = S::broadcast(facts(x + r * x_stride).scale);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        totals[r][v] = S::fma(S::to_f32(sums[r][v]), S::mul(w_scale[v], x_scale), totals[r][v]);
      }
    }
    if constexpr (kInfo.has_minimums) {
      typename S::F32 minimum[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        minimum[v] = load_scales<S, kFormat>(tile + minimums_at(kInfo), factors + 2 * kPanelOutputs,
                                             column + v * S::kLanes);
      }
      add_minimums<kRows, kVectors>(minimum, x, x_stride, totals);
    }
  }

  // The facts of the group whose codes begin at x.
  static const GroupFacts& facts(const std::int8_t* x) {
    return *reinterpret_cast<const GroupFacts*>(x + kInfo.tile_inputs);
  }

  // All inputs of a group are multiplied with the same minimum, so it is multiplied with their sum.
  template <int kRows, int kVectors>
  static inline __attribute__((always_inline)) void add_minimums(
      const typename S::F32 (&minimum)[kVectors], const std::int8_t* x, std::int64_t x_stride,
      typename S::F32 (&totals)[kRows][kVectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename S::F32 sum = S::broadcast(facts(x + r * x_stride).sum);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        totals[r][v] = S::fma(sum, minimum[v], totals[r][v]);
      }
    }
  }

  // -zero point * sum of x's codes: the zero point costs no more than clearing a register.
  template <int kRows, int kVectors>
  static inline __attribute__((always_inline)) void start_sums(
      const std::uint8_t* zero_points, const std::int8_t* x, std::int64_t x_stride,
      typename S::I32 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename S::I32 start = S::broadcast_i32(facts(x + r * x_stride).start);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kInfo.has_zero_points) {
          sums[r][v] = S::mul_i16(S::load_u8(zero_points + v * S::kLanes), start);
        } else {
          sums[r][v] = start;
        }
      }
    }
  }
};

// Formats with one scale per output: sums are integers over all of K.
template <class S>
struct ChannelTile {
  static constexpr FormatInfo kInfo = format_info(Format::kInt8Channel);
  using Codes = Codes8<S>;
  static constexpr int kMaxRows = S::kMaxChannelRows;

  // Of a StreamPrefetcher.
  static std::int64_t num_steps(const PackedView& w, int num_rows) {
    return w.num_tiles * (kPanelOutputs / (S::float_vectors(num_rows) * S::kLanes));
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
  template <int kRows, int kVectors>
  static void run_columns(const PackedView& w, const Panels& panels, int column,
                          const PreparedRows& rows, std::int64_t row, StreamPrefetcher& ahead,
                          const LinearOutput& output) {
    constexpr int kSteps = kInfo.tile_inputs / 4;
    constexpr std::int64_t kMaxPanels = max_panels(kRows);
    const std::int64_t num_panels = kMaxPanels == 1 ? 1 : panels.count;
    const std::uint8_t* tile = w.panels + panels.first * w.panel_bytes;
    const std::int8_t* x = static_cast<const std::int8_t*>(rows.values) + row * rows.stride;

    typename S::I32 sums[kMaxPanels][kRows][kVectors];
    const std::int8_t* const row_end = x + w.num_tiles * kInfo.tile_inputs;
    for (std::int64_t p = 0; p < num_panels; ++p) {
      for (int r = 0; r < kRows; ++r) {
        const auto* const facts = reinterpret_cast<const GroupFacts*>(row_end + r * rows.stride);
        for (int v = 0; v < kVectors; ++v) sums[p][r][v] = S::broadcast_i32(facts->start);
      }
    }
    for (std::int64_t t = 0; t < w.num_tiles; ++t) {
      ahead.step();
      for (std::int64_t p = 0; p < num_panels; ++p) {
        add_tile_products<S, Codes, kRows, kVectors>(tile + p * w.panel_bytes + 4 * column, kSteps,
                                                     x, rows.stride, sums[p]);
      }
      tile += tile_bytes(kInfo);
      x += kInfo.tile_inputs;
    }
    for (std::int64_t p = 0; p < num_panels; ++p) {
      const auto* const w_scales =
          reinterpret_cast<const float*>(tile + p * w.panel_bytes) + column;
      for (int r = 0; r < kRows; ++r) {
        const auto* const facts = reinterpret_cast<const GroupFacts*>(row_end + r * rows.stride);
        const typename S::F32 x_scale = S::broadcast(facts->scale);
        for (int v = 0; v < kVectors; ++v) {
          const typename S::F32 scale = S::mul(S::load(w_scales + v * S::kLanes), x_scale);
          write_outputs<S>(S::mul(S::to_f32(sums[p][r][v]), scale), row + r,
                           (panels.first + p) * kPanelOutputs + column + v * S::kLanes,
                           w.num_outputs, output);
        }
      }
    }
  }
};

}  // namespace
}  // namespace pellucid
