// Linear layers with bf16 weights and bf16 activations, in AMX tiles.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../format.h"
#include "linear_tiles.h"
#include "simd_avx512.h"

namespace pellucid {
namespace {

// Makes the compiler write the bytes at p. GCC does not know that the intrinsics for tiles read
// them.
inline void write_now(const void* p) { __asm__ volatile("" ::"r"(p) : "memory"); }

// The shapes of the eight tile registers, as LDTILECFG reads them: tiles 0 to 5 have num_rows rows,
// tiles 6 and 7, the weights, all 16.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  explicit TileConfig(std::int64_t num_rows) {
    for (int tile = 0; tile < 8; ++tile) {
      rows[tile] = static_cast<std::uint8_t>(tile < 6 ? num_rows : 16);
      row_bytes[tile] = 64;
    }
  }

  void load() const {
    write_now(this);
    _tile_loadconfig(this);
  }
};

// A linear layer, for the life of one call. Every number of rows is multiplied by
// `_tile_dpbf16ps`, because its sums have an order of their own: for 32 inputs at a time it sums
// the products of the inputs with even numbers, and apart from them those with odd numbers; it adds
// the two sums, then their total to the sum so far. Each step rounds to nearest even, and subnormal
// numbers count as zero. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
// TDPBF16PS.
//
// Tiles 0 to 3 are sums [rows, 16 outputs], tiles 4 and 5 activations [rows, 32 inputs], tiles 6
// and 7 weights [16 pairs of inputs, 16 outputs], whose bytes lie in panels as AMX reads them.
class AmxBF16 {
 public:
  static void compute(const PackedView& w, const PreparedRows& rows, std::int64_t row_begin,
                      std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end,
                      const LinearOutput& output) {
    const AmxBF16 layer(w, rows, row_begin, row_end, output);
    if (row_end - row_begin <= kRows) {
      for (std::int64_t panel = panel_begin; panel < panel_end; panel += kPanelsOfFewRows) {
        layer.compute_few_rows(panel, min(kPanelsOfFewRows, panel_end - panel));
      }
    } else {
      for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
        layer.compute_rows(panel, panel + 1 < panel_end);
      }
    }
    _tile_release();
  }

 private:
  static_assert(format_info(Format::kBF16).tile_inputs == 2, "a panel is made of pairs of inputs");
  static constexpr std::int64_t kRows = 16;                          // of a tile
  static constexpr std::int64_t kInputs = 32;                        // of a tile
  static constexpr std::int64_t kOutputs = 16;                       // of a tile
  static constexpr std::int64_t kTileBytes = 64;                     // of a row of a tile
  static constexpr std::int64_t kInputBytes = 2 * kPanelOutputs;     // of an input in a panel
  static constexpr std::int64_t kPairBytes = 2 * kInputBytes;        // of a pair of inputs
  static constexpr std::int64_t kStepBytes = kInputs * kInputBytes;  // of both tiles of weights
  static constexpr std::int64_t kSumsBytes = kPanelOutputs * sizeof(float);  // of a row
  static constexpr std::int64_t kPanelsOfFewRows = 2;
  // Few rows wait for weights: each step prefetches what is so far ahead into the first-level
  // cache.
  static constexpr std::int64_t kAheadBytes = 3 << 10;
  // The weights of so many inputs stay in the first-level cache while the tiles of rows pass.
  static constexpr std::int64_t kChunkInputs = 512;
  // The sums of so many rows stay in the second-level cache.
  static constexpr std::int64_t kChunkRows = 256;

  using Sums = float[kPanelOutputs];  // of a row

  // Weights behind the last whole step of a panel, and zeros up to a step.
  struct alignas(64) LastWeights {
    std::uint8_t bytes[kStepBytes];

    LastWeights(const AmxBF16& layer, std::int64_t index) {
      const std::int64_t size = (layer.num_inputs_ - layer.num_whole_) * kInputBytes;
      __builtin_memcpy(bytes, layer.panel(index) + layer.num_whole_ * kInputBytes,
                       static_cast<std::size_t>(size));
      __builtin_memset(bytes + size, 0, static_cast<std::size_t>(kStepBytes - size));
      write_now(bytes);
    }
  };

  AmxBF16(const PackedView& w, const PreparedRows& rows, std::int64_t row_begin,
          std::int64_t row_end, const LinearOutput& output)
      : w_(w),
        x_(static_cast<const std::uint16_t*>(rows.values)),
        x_stride_(rows.stride),
        row_begin_(row_begin),
        row_end_(row_end),
        tile_rows_(min(kRows, row_end - row_begin)),
        num_inputs_(2 * w.num_tiles),
        num_whole_(num_inputs_ / kInputs * kInputs),
        output_(output) {
    TileConfig(tile_rows_).load();
  }

  // std::min would be a function that the linker may share with code for any processor.
  static std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  const std::uint8_t* panel(std::int64_t index) const { return w_.panels + index * w_.panel_bytes; }

  const std::uint16_t* inputs(std::int64_t row, std::int64_t input) const {
    return x_ + row * x_stride_ + input;
  }

  // The first row of the tile that begins at `row`. The last tile overlaps the tile before it: the
  // rows of both are computed twice, with the same bits, and written once.
  std::int64_t first_row(std::int64_t row) const { return min(row, row_end_ - tile_rows_); }

  // One tile of rows: memory bounds it, and two panels are read side by side.
  void compute_few_rows(std::int64_t index, std::int64_t num_panels) const {
    const std::int64_t last = index + num_panels - 1;
    clear_sums();
    for (std::int64_t input = 0; input < num_whole_; input += kInputs) {
      const std::uint8_t* const left = panel(index) + input * kInputBytes;
      const std::uint8_t* const right = panel(last) + input * kInputBytes;
      for (std::int64_t line = 0; line < kStepBytes; line += kCacheLine) {
        __builtin_prefetch(left + kAheadBytes + line);
        __builtin_prefetch(right + kAheadBytes + line);
      }
      add_step_of_few_rows(left, right, input);
    }
    if (num_whole_ < num_inputs_) {
      const LastWeights left(*this, index), right(*this, last);
      add_step_of_few_rows(left.bytes, right.bytes, num_whole_);
    }
    alignas(64) Sums sums[kPanelsOfFewRows][kRows];
    store_sums(sums[0], sums[1]);
    for (std::int64_t p = 0; p < num_panels; ++p) {
      for (std::int64_t r = 0; r < tile_rows_; ++r) write(sums[p][r], row_begin_ + r, index + p);
    }
  }

  void add_step_of_few_rows(const std::uint8_t* left, const std::uint8_t* right,
                            std::int64_t input) const {
    _tile_loadd(4, inputs(row_begin_, input), 2 * x_stride_);
    _tile_loadd(6, left, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, left + kTileBytes, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, right, kPairBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, right + kTileBytes, kPairBytes);
    _tile_dpbf16ps(3, 4, 7);
  }

  // More rows: two tiles of them at a time meet a chunk of one panel.
  void compute_rows(std::int64_t index, bool has_next) const {
    const std::int64_t num_steps = (num_inputs_ + kInputs - 1) / kInputs;
    const std::int64_t num_pairs = (row_end_ - row_begin_ + 2 * kRows - 1) / (2 * kRows);
    StreamPrefetcher ahead(panel(index) + w_.panel_bytes, has_next ? w_.panel_bytes : 0,
                           num_steps * num_pairs);
    const LastWeights last(*this, index);
    alignas(64) Sums sums[kChunkRows];
    for (std::int64_t begin = row_begin_; begin < row_end_; begin += kChunkRows) {
      const std::int64_t end = min(begin + kChunkRows, row_end_);
      for (std::int64_t input = 0; input < num_inputs_; input += kChunkInputs) {
        for (std::int64_t row = begin; row < end; row += 2 * kRows) {
          add_chunk(index, last, row, input, sums + (row - begin), ahead);
        }
      }
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t tile = begin + (row - begin) / kRows * kRows;
        write(sums[tile - begin + row - first_row(tile)], row, index);
      }
    }
  }

  // Adds the products of a chunk of inputs to the sums of the tiles of rows that begin at `row` and
  // kRows behind it. The first chunk begins the sums.
  void add_chunk(std::int64_t index, const LastWeights& last, std::int64_t row,
                 std::int64_t first_input, Sums* sums, StreamPrefetcher& ahead) const {
    const bool has_lower = row + kRows < row_end_;
    const std::int64_t upper = first_row(row), lower = first_row(row + kRows);
    if (first_input == 0) {
      clear_sums();
    } else {
      load_sums(sums, sums + kRows);
    }
    const std::int64_t end = min(first_input + kChunkInputs, num_inputs_);
    for (std::int64_t input = first_input; input < end; input += kInputs) {
      ahead.step();
      const std::uint8_t* const weights =
          input < num_whole_ ? panel(index) + input * kInputBytes : last.bytes;
      _tile_loadd(6, weights, kPairBytes);
      _tile_loadd(7, weights + kTileBytes, kPairBytes);
      _tile_loadd(4, inputs(upper, input), 2 * x_stride_);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (has_lower) {
        _tile_loadd(5, inputs(lower, input), 2 * x_stride_);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    store_sums(sums, sums + kRows);
  }

  static void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  static void load_sums(const Sums* upper, const Sums* lower) {
    _tile_loadd(0, upper[0], kSumsBytes);
    _tile_loadd(1, upper[0] + kOutputs, kSumsBytes);
    _tile_loadd(2, lower[0], kSumsBytes);
    _tile_loadd(3, lower[0] + kOutputs, kSumsBytes);
  }
  static void store_sums(Sums* upper, Sums* lower) {
    _tile_stored(0, upper[0], kSumsBytes);
    _tile_stored(1, upper[0] + kOutputs, kSumsBytes);
    _tile_stored(2, lower[0], kSumsBytes);
    _tile_stored(3, lower[0] + kOutputs, kSumsBytes);
  }

  void write(const Sums& sums, std::int64_t row, std::int64_t index) const {
    for (std::int64_t output = 0; output < kPanelOutputs; output += kOutputs) {
      write_outputs<Simd>(Simd::load(sums + output), row, index * kPanelOutputs + output,
                          w_.num_outputs, output_);
    }
  }

  const PackedView& w_;
  const std::uint16_t* const x_;
  const std::int64_t x_stride_;  // in inputs; rows end with zeros, up to a whole step
  const std::int64_t row_begin_;
  const std::int64_t row_end_;
  const std::int64_t tile_rows_;
  const std::int64_t num_inputs_;  // of a panel, an even number
  const std::int64_t num_whole_;   // inputs of whole steps
  const LinearOutput& output_;
};

}  // namespace
}  // namespace pellucid
