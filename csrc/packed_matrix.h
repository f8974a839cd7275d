// PackedMatrix: a weight matrix [N, K] in the layout of the kernels. One copy serves products with
// one row and with a thousand, and the values do not change.
//
// The matrix is cut into panels of 32 outputs; a panel is one contiguous stream of tiles along K,
// so that a thread reads memory in order. A tile is [steps][32 outputs][cell], where a cell holds
// neighbouring inputs of one output:
//
//   format  cell                                             steps of a tile
//   f32     1 input, 4 bytes                                 1
//   f16     1 input, 2 bytes                                 1
//   bf16    2 inputs, what one lane of a dot product takes   1
//   int8    4 inputs, likewise; codes + 128                  8
//   int4    8 inputs: 0..3 in the low halves of 4 bytes, 4..7 in the high ones, so that one load
//           gives two operands of a dot product              4 or 16
//
// where int4 stands for all codes of 4 bits. Codes of 5 and 6 bits have their lower four bits there
// and one step more behind these, whose byte j of a cell holds the upper bits of the inputs j, 4 +
// j, 8 + j ... of the tile, the first lowest. After the codes there are [32] scales, [32] u8 zero
// points and [32] minimums where the format has them. Scales and minimums are f16. Formats with
// factors have s8 there, and for each 256 inputs the [32] f16 factors of both at the end of the
// panel. Scales that are powers of two are a byte. int8-channel has [32] f32 scales at the end of
// the panel. Cells beyond K are multiplied by zeros. Outputs beyond N are never written.
#pragma once

#include <cstdint>
#include <memory>

#include "aligned_buffer.h"
#include "format.h"
#include "kernels/linear_kernels.h"
#include "weight_memory.h"

namespace pellucid {

// A matrix in the layout of files and of NumPy: row-major, borrowed. Groups are those of the
// format; num_groups = ceil(K / group), and the last group may be short.
struct WeightSource {
  // f32, f16, bf16: [N, K] of 4 or 2 bytes. int8, and codes of 5 and 6 bits: s8 [N, K]. int4: [N,
  // ceil(K / 2)], the even input in the low half of a byte; codes are 0..15.
  const void* weights = nullptr;
  const void* scales = nullptr;  // f16, s8 or u8 [N, num_groups]; int8-channel: f32 [N]
  const std::uint8_t* zero_points = nullptr;  // [N, num_groups], 0..15
  const void* minimums = nullptr;             // f16 or s8 [N, num_groups]
  // f16 [N, ceil(K / 256)], the factors of s8 scales and minimums.
  const std::uint16_t* scale_factors = nullptr;
  const std::uint16_t* minimum_factors = nullptr;
};

// The arrays that `unpack` writes, of the same shapes.
struct WeightTarget {
  void* weights = nullptr;
  void* scales = nullptr;
  std::uint8_t* zero_points = nullptr;
  void* minimums = nullptr;
  std::uint16_t* scale_factors = nullptr;
  std::uint16_t* minimum_factors = nullptr;
};

class PackedMatrix {
 public:
  // An empty matrix, to be packed; N, K >= 1. Takes its memory from `memory` if that is given and
  // has room. Throws std::invalid_argument for int8-channel beyond 65536 inputs, where sums of
  // products could exceed 32 bits.
  PackedMatrix(Format format, std::int64_t num_outputs, std::int64_t num_inputs,
               Activations activations = Activations::kNative,
               std::shared_ptr<WeightMemory> memory = nullptr);

  // A matrix that has a shape and no memory: programs with it are planned, and do not run. Throws
  // as above.
  static PackedMatrix without_memory(Format format, std::int64_t num_outputs,
                                     std::int64_t num_inputs, Activations activations);

  bool has_memory() const { return panels_ != nullptr; }
  Format format() const { return format_; }
  Activations activations() const { return activations_; }
  std::int64_t num_outputs() const { return view_.num_outputs; }
  std::int64_t num_inputs() const { return view_.num_inputs; }
  std::int64_t num_panels() const { return num_panels_; }
  std::size_t num_bytes() const {
    return static_cast<std::size_t>(num_panels_ * view_.panel_bytes);
  }
  const PackedView& view() const { return view_; }

  // Tells the memory behind the matrix that a step is about to read all of it.
  void note_read() const;

  // Packs the panels [panel_begin, panel_end); threads may pack different panels at the same time.
  void pack(const WeightSource& source, std::int64_t panel_begin, std::int64_t panel_end);
  // Packs one panel of rows whose arrays begin with the panel's first row.
  void pack_panel(const WeightSource& rows, std::int64_t panel);
  void unpack(const WeightTarget& target, std::int64_t panel_begin, std::int64_t panel_end) const;

  // Unpacks row `output` as floats [K]: an embedding table may share the head's matrix.
  void gather_row(std::int64_t output, float* row) const;

 private:
  PackedMatrix(Format format, Activations activations, std::int64_t num_outputs,
               std::int64_t num_inputs);

  // Packs a panel of the rows of `source` that begin with the row `first_row`.
  void pack_panel(const WeightSource& source, std::int64_t first_row, std::int64_t panel);

  Format format_;
  Activations activations_;
  std::int64_t num_panels_;
  std::shared_ptr<WeightMemory> shared_;  // where the panels lie
  AlignedBuffer own_;                     // or here
  std::uint8_t* panels_ = nullptr;
  PackedView view_{};
};

// Bytes that a matrix of this shape takes, for planning before anything is read.
std::size_t packed_bytes(Format format, std::int64_t num_outputs, std::int64_t num_inputs);

}  // namespace pellucid
