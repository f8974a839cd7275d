// Unpacks the blocks of GGUF's quantized types into the arrays of a matrix (packed_matrix.h,
// WeightSource). The numbers do not change. loading/gguf_blocks.py defines them.
#pragma once

#include <cstdint>

#include "format.h"
#include "packed_matrix.h"

namespace pellucid {

// A quantized type, by its name in the GGUF specification.
struct BlockType {
  const char* name;
  Format format;     // of the matrix
  int block_inputs;  // a row has whole blocks
  int block_bytes;
  // Unpacks the blocks [begin, end), counted over all rows.
  void (*unpack)(const std::uint8_t* blocks, std::int64_t begin, std::int64_t end,
                 const WeightTarget& target);
};

inline constexpr int kNumBlockTypes = 11;
extern const BlockType kBlockTypes[kNumBlockTypes];

}  // namespace pellucid
