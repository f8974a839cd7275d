// KVCache: the keys and values of all layers, in blocks. They are stored in the layout of the
// attention kernels' operands, for one query and for a thousand, so nothing is repacked.
//
//   layer > block > kv-head > tile of 16 tokens > K, V
//
// so that one kv-head of a block is one contiguous stream. Where layers have kv-heads of different
// shapes, the blocks are outermost: block > layer > kv-head > tile. A cell is the operand of one
// lane of a dot product; a tile is
//
//   K [dims / cell][16 tokens][cell]
//   V [16 tokens / cell][dims][cell]
//   scales of K, then those of V [groups][16 tokens], in bf16
//
// K and V begin at cache lines: tiles are padded to whole ones.
//
//   format     cell                                    group of numbers that share a scale
//   f32        1 number, 4 bytes                       none
//   bf16       2 numbers                               none
//   int8       4 numbers; K: code + 128, V: code       K: 32 dimensions of a token, rotated:
//                                                      kernels/hadamard.h; V: its head
//   int4       8 numbers: 0..3 in the low halves of    32 dimensions of a token, rotated
//              4 bytes, 4..7 in the high ones; code+8
//   int8,int4  K as in int8, V as in int4
//
// Dimensions are padded with zeros to 16, with codes to 32.
//
// A model's layers may be in several groups, each with block tables of its own. A block then holds
// keys and values of one group. All blocks have the size of the largest group's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "aligned_buffer.h"
#include "kernels/attention_kernels.h"

namespace pellucid {

// "f32", "bf16", "int8", "int8,int4" or "int4", as in EngineConfig.kv_cache_dtype.
std::optional<KVFormat> find_kv_format(std::string_view name);
const char* kv_format_name(KVFormat format);

// Layers of one shape that share block tables.
struct KVGroup {
  std::int64_t num_layers;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;    // a multiple of 8, at most 512
  std::int64_t window = 0;  // keys that a token sees; 0: all before it
};

struct KVShape {
  KVFormat format;
  std::int64_t block_size;      // tokens, a multiple of 16
  std::vector<KVGroup> groups;  // at least one

  std::int64_t num_groups() const { return static_cast<std::int64_t>(groups.size()); }
  const KVGroup& group(std::int64_t index) const { return groups[static_cast<std::size_t>(index)]; }
};

// A layer of a group.
struct KVPlace {
  std::int64_t layer;  // of its group
  std::int64_t group = 0;
};

// Bytes of one block in all layers of the largest group, scales and padding included.
std::int64_t kv_bytes_per_block(const KVShape& shape);

class KVCache {
 public:
  // Throws std::bad_alloc.
  KVCache(const KVShape& shape, std::int64_t num_blocks);

  const KVShape& shape() const { return shape_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::size_t num_bytes() const { return buffer_.size(); }
  KVView layer(KVPlace place);

  // Copies the contents of a block, layer after layer of its group: bytes_per_block() bytes, which
  // only a cache of the same shape can read.
  std::int64_t bytes_per_block() const { return kv_bytes_per_block(shape_); }
  void copy_block(std::int64_t source, std::int64_t target);
  void read_block(std::int64_t block, std::uint8_t* data);
  void write_block(std::int64_t block, const std::uint8_t* data);

 private:
  // Calls visit(bytes of the block in a slab, their number) for each slab.
  template <class F>
  void for_each_slab(std::int64_t block, F visit);

  KVShape shape_;
  std::int64_t num_blocks_;
  // A slab holds a part of every block, block after block: a layer, or all layers where they
  // differ.
  std::int64_t slab_bytes_;  // of one block
  std::int64_t num_slabs_;
  AlignedBuffer buffer_;
};

}  // namespace pellucid
