// y = x W^T + b, in two phases with a barrier of the caller's between them. Any split of rows and
// panels over threads gives the same bits.
//
// Arithmetic, by format and for any number of rows:
//
//   f32, f16   products and sums in f32, k in order.
//   bf16       x rounded to bf16 (nearest even), products summed in f32, k in pairs in order.
//   integer    x quantized to s8 with a scale per group of inputs (kernels/int8_codes.h); products
//              of a group summed exactly; then, groups in order, y += float(sum) * (w's scale *
//              x's scale) in f32, and with minimums y += (sum of x's codes * x's scale) * minimum.
//
//   kF32       weights dequantized to f32, products and sums in f32, k in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_table.h"
#include "packed_matrix.h"

namespace pellucid {

// Bytes of scratch, to be aligned to 64, for `num_rows` rows.
std::size_t linear_scratch_bytes(const PackedMatrix& w, std::int64_t num_rows);

// The panels that a thread takes at a time. With fewer it takes the next ones too often. With more,
// the last thread computes alone at the end.
std::int64_t panels_per_grab(const PackedMatrix& w);

// Likewise for steps of few rows: enough to read the weights of one row in several streams
// (kPanelsAbreast).
std::int64_t panels_per_grab_of_few_rows(const PackedMatrix& w);

// The most rows that a thread takes through the matrix at a time.
std::int64_t rows_per_block(const KernelTable& kernels, const PackedMatrix& w);

// Phase 1: prepares rows [row_begin, row_end) of x [rows, K] in scratch. Matrices of the same
// format, activations and K may share the prepared rows.
void linear_prepare(const KernelTable& kernels, const PackedMatrix& w, const float* x,
                    std::int64_t x_stride, std::int64_t row_begin, std::int64_t row_end,
                    void* scratch);

// Whether both matrices take the same prepared rows.
bool share_prepared_rows(const PackedMatrix& a, const PackedMatrix& b);

// Copies a row prepared for w: row `from_row` of `from` to row `to_row` of `to`.
void copy_prepared_row(const PackedMatrix& w, const void* from, std::int64_t from_row, void* to,
                       std::int64_t to_row);

// Phase 2: computes rows [row_begin, row_end), which must be prepared, in the columns of the panels
// [panel_begin, panel_end).
void linear_compute(const KernelTable& kernels, const PackedMatrix& w, void* scratch,
                    std::int64_t row_begin, std::int64_t row_end, std::int64_t panel_begin,
                    std::int64_t panel_end, const LinearOutput& output);

}  // namespace pellucid
