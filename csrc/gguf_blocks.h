// The blocks of GGUF's quantized types as the arrays of a matrix (packed_matrix.h, WeightSource):
// the same numbers, laid out anew. The definition is loading/gguf_blocks.py.
#pragma once

#include <cstdint>

#include "format.h"
#include "packed_matrix.h"

namespace pellucid {

// A type of blocks, by its name in the format's specification.
struct BlockType {
  const char* name;
  Format format;     // of the matrix
  int block_inputs;  // a row has whole blocks
  int block_bytes;
  // Blocks [begin, end) of all, rows one after the other.
  void (*unpack)(const std::uint8_t* blocks, std::int64_t begin, std::int64_t end,
                 const WeightTarget& target);
};

inline constexpr int kNumBlockTypes = 8;
extern const BlockType kBlockTypes[kNumBlockTypes];

}  // namespace pellucid
