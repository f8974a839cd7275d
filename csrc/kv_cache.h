// KVCache: the keys and values of all layers, in blocks. They are stored in the layout of the
// attention kernels' operands, for one query and for a thousand, so nothing is repacked.
//
//   block > layer > kv-head > tile of 16 tokens > K, V
//
// so that one kv-head of a block is one contiguous stream, and the first tokens of a process touch
// few huge pages, which the system has to find and clear. A cell is the operand of one lane of a
// dot product; a tile is
//
//   K [dims / cell][16 tokens][cell]
//   V [16 tokens / cell][dims][cell]
//   scales of K, then those of V [groups][16 tokens], in bf16; in place of K's in int4 [dims]: in
//   the first tile of 32 tokens their scales, in the second their minimums
//
// K and V begin at cache lines: tiles are padded to whole ones.
//
//   format     cell                                    group of numbers that share a scale
//   f32        1 number, 4 bytes                       none
//   bf16       2 numbers                               none
//   int8       4 numbers; K: code + 128, V: code       K: 32 dimensions of a token, rotated:
//                                                      kernels/hadamard.h; V: its head
//   int4       8 numbers: 0..3 in the low halves of    K: a dimension of 32 tokens; V: 32
//              4 bytes, 4..7 in the high ones; V: +8   dimensions of a token, rotated
//   int8,int4  K as in int8, V as in int4
//
// Dimensions are padded with zeros to 16, with codes to 32.
//
// A model's layers may be in several groups, each with block tables of its own. A block then holds
// keys and values of one group. All blocks have the size of the largest group's.
//
// Where 32 tokens share scales, their keys become codes when all are known. Until then, and for the
// queries among them, they are beside the blocks, in bf16 (KVView): the latest two such groups of a
// sequence in its slot, those before them that a step stores in an area until the next step.
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
  std::int64_t block_size;      // tokens, a multiple of 16; of 32 with open keys
  std::vector<KVGroup> groups;  // at least one

  std::int64_t num_groups() const { return static_cast<std::int64_t>(groups.size()); }
  const KVGroup& group(std::int64_t index) const { return groups[static_cast<std::size_t>(index)]; }
};

// How much the memory of open keys holds, in formats with open keys.
struct OpenShape {
  std::int64_t num_slots = 1;            // sequences
  std::int64_t max_step_tokens = 0;      // tokens of a step
  bool has_area_for_each_layer = false;  // else layers use one after another
};

bool has_open_keys(KVFormat format);

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
  KVCache(const KVShape& shape, std::int64_t num_blocks, const OpenShape& open = {});

  const KVShape& shape() const { return shape_; }
  const OpenShape& open() const { return open_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::size_t num_bytes() const { return buffer_.size() + open_keys_.size(); }
  KVView layer(KVPlace place);

  // Copies the open keys of a slot, group after group and layer after layer: slot_bytes() bytes, 0
  // in formats without.
  std::int64_t slot_bytes() const { return slot_bytes_; }
  void copy_slot(std::int64_t source, std::int64_t target);
  void read_slot(std::int64_t slot, std::uint8_t* data) const;
  void write_slot(std::int64_t slot, const std::uint8_t* data);

  // Copies the contents of a block, layer after layer of its group: bytes_per_block() bytes, which
  // only a cache of the same shape can read.
  std::int64_t bytes_per_block() const { return kv_bytes_per_block(shape_); }
  void copy_block(std::int64_t source, std::int64_t target);
  void read_block(std::int64_t block, std::uint8_t* data);
  void write_block(std::int64_t block, const std::uint8_t* data);

 private:
  std::byte* block(std::int64_t block);

  KVShape shape_;
  std::int64_t num_blocks_;
  AlignedBuffer buffer_;
  OpenShape open_;
  std::int64_t slot_bytes_;
  AlignedBuffer open_keys_;  // of all slots, then the areas
};

}  // namespace pellucid
