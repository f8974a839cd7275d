// What stands between linear.cpp and the kernels of one instruction set: plain data and pointers.
//
// The promise of every kernel here: an output element is one fixed sequence of operations over k,
// whatever rows and columns are computed beside it. SIMD lanes are output columns, and tiles of any
// number of rows run the same code.
#pragma once

#include <cstdint>

#include "../format.h"

namespace pellucid {

// A packed matrix as kernels see it; packed_matrix.h describes the bytes.
struct PackedView {
  const std::uint8_t* panels;
  std::int64_t panel_bytes;
  std::int64_t num_outputs;  // N
  std::int64_t num_inputs;   // K
  std::int64_t num_tiles;    // along K; the last one may be padded with weights of zero
};

// How often a group of s8 may halve the scale of its row, and what is then left of it.
constexpr int kMaxHalvings = 31;
constexpr float kMostHalved = 0x1p-31f;

// Rows of x as a format's kernels want them, in scratch memory: s8, bf16 or f32. A value in s8 is
// scale * 2^-halvings * code. Groups are added up in units of scale * kMostHalved, in which none
// has a factor below one.
struct PreparedRows {
  void* values;             // row r begins at r * stride elements; zero beyond num_inputs
  std::int64_t stride;      // elements
  float* scales;            // [rows], s8 only
  std::int32_t* raises;     // [rows, num_groups], s8 only: (kMaxHalvings - halvings) << 23, what to
                            // add to a float's bits to have it times 2^(kMaxHalvings - halvings)
  std::int32_t* starts;     // [rows, num_groups], s8 only: what an accumulator starts with, that is
                            // -zero point * sum of codes; -sum where zero points differ
  float* sums;              // [rows, num_groups], for minimums only: sum of codes, raised
  std::int64_t num_groups;  // groups of one row
};

struct LinearOutput {
  float* y;  // [rows, N]
  std::int64_t y_stride;
  const float* bias = nullptr;  // [N]
  bool add_to_y = false;        // y += x W^T + b, for residuals
};

struct LinearKernel {
  // Rows [row_begin, row_end) of x [rows, K].
  void (*prepare)(const PackedView& w, const float* x, std::int64_t x_stride,
                  std::int64_t row_begin, std::int64_t row_end, const PreparedRows& rows);
  // Rows [row_begin, row_end) of the columns of panels [panel_begin, panel_end).
  void (*compute)(const PackedView& w, const PreparedRows& rows, std::int64_t row_begin,
                  std::int64_t row_end, std::int64_t panel_begin, std::int64_t panel_end,
                  const LinearOutput& output);
};

struct LinearKernels {
  LinearKernel kernels[kNumFormats][kNumActivations];
};

}  // namespace pellucid
