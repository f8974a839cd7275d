// Unpacks the blocks of GGUF's quantized types into the arrays of a matrix (packed_matrix.h,
// WeightSource). The numbers do not change. loading/gguf_blocks.py defines them.
#pragma once

#include <cstdint>
#include <vector>

#include "format.h"
#include "packed_matrix.h"

namespace pellucid {

// A quantized type, by its name in the GGUF specification.
struct BlockType {
  const char* name;
  Format format;     // of the matrix
  int block_inputs;  // a row has whole blocks
  int block_bytes;
  // Unpacks `count` blocks; the first one's numbers stand in the arrays of `target` where those of
  // the block `first` of all rows stand.
  void (*unpack)(const std::uint8_t* blocks, std::int64_t first, std::int64_t count,
                 const WeightTarget& target);
  int num_f16;    // numbers of a block that could be infinite or no number
  int f16_at[2];  // their bytes
};

inline constexpr int kNumBlockTypes = 11;
extern const BlockType kBlockTypes[kNumBlockTypes];

// Whether all f16 numbers of `count` blocks are finite.
bool are_finite(const BlockType& type, const std::uint8_t* blocks, std::int64_t count);

// Rows of blocks [.., row_bytes], borrowed.
struct BlockRows {
  const BlockType* type;
  const std::uint8_t* blocks;
  std::int64_t row_bytes;
  std::int64_t num_rows;  // of the matrix
  const std::int64_t*
      order;  // [num_rows], which of the rows of blocks; nullptr: one after the other
};

// Unpacks and packs the panels [panel_begin, panel_end) of a matrix whose rows are those of all
// `parts`, types of one format. Threads may pack different panels at the same time. Numbers between
// the two layouts stay in a core's cache.
void pack_blocks(const std::vector<BlockRows>& parts, PackedMatrix& matrix,
                 std::int64_t panel_begin, std::int64_t panel_end);

}  // namespace pellucid
