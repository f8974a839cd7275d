// Quantizes weight matrices to int8 and int4 of all kinds, but not to the formats that hold GGUF's
// blocks. backends/quantization/weights.py is the definition; both give the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "format.h"
#include "kernel_table.h"
#include "packed_matrix.h"

namespace pellucid {

// Weights to be quantized, [N, K] row-major: f32, or bits of f16 or bf16; finite.
struct FloatMatrixView {
  const void* weights;
  Format format;  // one of the three
  std::int64_t num_outputs;
  std::int64_t num_inputs;
};

// Quantizes one matrix, or a part of it. Several threads that share a matrix need a quantizer each,
// because a quantizer has the memory of the groups that it works on.
class MatrixQuantizer {
 public:
  // Writes codes, scales and zero points to the arrays of `target`, which have the shapes of
  // WeightSource. Scales that f16 cannot hold become infinite; the caller has to check for that.
  MatrixQuantizer(const KernelTable& kernels, const FloatMatrixView& matrix, Format format,
                  const WeightTarget& target);

  // Groups are quantized sixteen at a time.
  std::int64_t num_pieces() const;
  void run(std::int64_t piece_begin, std::int64_t piece_end);

 private:
  // The groups of a matrix, numbered row by row.
  struct Groups {
    std::int64_t size;  // inputs
    std::int64_t per_row;
    std::int64_t count;

    Groups(const FloatMatrixView& matrix, const FormatInfo& info);
    std::int64_t row(std::int64_t group) const { return group / per_row; }
    std::int64_t begin(std::int64_t group) const { return group % per_row * size; }
  };

  std::int64_t inputs_of(std::int64_t group) const;
  void load(std::int64_t first, std::int64_t count);
  void fit_int8(std::int64_t first, std::int64_t count, CodeRanges& ranges) const;
  void fit_int4(std::int64_t first, std::int64_t count, CodeRanges& ranges) const;

  const QuantizeKernels& kernels_;
  const FloatMatrixView matrix_;
  const FormatInfo& info_;
  const WeightTarget target_;
  const Groups groups_;
  const std::int64_t row_bytes_;
  std::vector<float> weights_;       // [group size][16]
  std::vector<std::uint8_t> codes_;  // likewise
};

}  // namespace pellucid
