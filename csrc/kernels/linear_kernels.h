// The interface between linear.cpp and the linear kernels of one instruction set level: plain data
// and pointers.
//
// The promise of every kernel here: an output comes from one fixed order of operations over k,
// whatever rows and columns are computed beside it. SIMD lanes are output columns, and tiles of any
// number of rows run the same code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../format.h"

namespace pellucid {

// The layout of a packed matrix, for kernels; packed_matrix.h describes the bytes.
struct PackedView {
  const std::uint8_t* panels;
  std::int64_t panel_bytes;
  std::int64_t num_outputs;  // N
  std::int64_t num_inputs;   // K
  std::int64_t num_tiles;    // along K; the last one may be padded with weights of zero
};

// The facts behind the codes of a group. A value is the group's scale * code.
struct GroupFacts {
  std::int32_t start;  // of an accumulator: -zero point * sum of codes; -sum where columns have
                       // zero points of their own
  float scale;
  float sum;  // of codes, times the scale; there for minimums only
};

constexpr std::int64_t group_facts_bytes(const FormatInfo& info) {
  return info.has_minimums ? sizeof(GroupFacts) : offsetof(GroupFacts, sum);
}

// Rows of x in the form that a format's kernels read, in scratch memory: floats, zero beyond
// num_inputs; for integer formats each group's s8 codes and facts, so that a row is one stream.
struct PreparedRows {
  void* values;         // f32, bf16, or bytes
  std::int64_t stride;  // from row to row, in such
};

struct LinearOutput {
  float* y;  // [rows, N]
  std::int64_t y_stride;
  const float* bias = nullptr;  // [N]
  bool add_to_y = false;        // y += x W^T + b, for residuals
};

// The most panels that a kernel computes side by side for one row, a tile of each in turn. The
// processor prefetches a stream of addresses only some lines ahead, so that one stream does not use
// the whole bandwidth of memory.
constexpr std::int64_t kPanelsAbreast = 4;

// The most rows that a thread takes through all weights at a time: the activations between their
// phases stay in a second-level cache.
constexpr std::int64_t kRowsPerBlock = 64;

struct LinearKernel {
  // Phase 1: prepares the rows [row_begin, row_end) of x [rows, K].
  void (*prepare)(const PackedView& w, const float* x, std::int64_t x_stride,
                  std::int64_t row_begin, std::int64_t row_end, const PreparedRows& rows);
  // Phase 2: computes the rows [row_begin, row_end) in the columns of the panels [panel_begin,
  // panel_end).
  void (*compute)(const PackedView& w, const PreparedRows& rows, std::int64_t row_begin,
                  std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end,
                  const LinearOutput& output);
  // At least kRowsPerBlock. The faster a kernel computes, the more rows each weight has to meet.
  std::int64_t rows_per_block = kRowsPerBlock;
};

struct LinearKernels {
  LinearKernel kernels[kNumFormats][kNumActivations];
};

}  // namespace pellucid
