// The interface between attention.cpp and the attention kernels of one instruction set level: plain
// data and pointers.
//
// The promise of every kernel here: the result of a query over a range of keys comes from one fixed
// order of operations, whatever queries are computed beside it. Lanes are keys while scores are
// computed, and dimensions while values are summed. Keys that a query must not see get the
// probability zero. In the tile of the query itself they are left out, because there even a product
// with zero could change the result.
#pragma once

#include <cstdint>

namespace pellucid {

// Of keys and values; kInt8Int4: keys in int8, values in int4. kInt4: keys in 4 bits by dimension.
enum class KVFormat : std::uint8_t { kF32, kBF16, kInt8, kInt8Int4, kInt4 };

constexpr int kNumKVFormats = 5;

// Tokens of a tile, side by side in the cache. Tiles, and ranges of tiles, begin at multiples of
// their size in the sequence, so the place of a query in each product follows from its position
// alone.
constexpr int kTileTokens = 16;
constexpr int kRangeTiles = 16;
constexpr int kRangeTokens = kRangeTiles * kTileTokens;

// The first position that a layer with a window (0: none) reads for the token at `position`: the
// tokens of a tile read the same keys.
constexpr std::int64_t first_seen(std::int64_t position, std::int64_t window) {
  const std::int64_t first = position / kTileTokens * kTileTokens - window + 1;
  return window == 0 || first < 0 ? 0 : first;
}

constexpr int kKVGroupDims = 32;  // dimensions of a head whose codes share a scale
constexpr int kMaxHeadDim = 512;

// Positions whose keys become codes together, where dimensions have scales. Until then, and for the
// queries of the same group, they are open: in bf16.
constexpr int kOpenTokens = 32;
constexpr int kOpenTiles = kOpenTokens / kTileTokens;
constexpr int kOpenGroups = 2;  // of a sequence, in its slot: group g in place g % 2

// Where the open keys of a request's groups are in a step: its two latest groups in its slot, those
// before them in the area that layers use one after another.
struct OpenGroups {
  std::int64_t slot;
  std::int64_t first_position;  // of the step's tokens
  std::int64_t last_group;
  std::int64_t area;  // the first of the request's places in the area

  std::int64_t first_group() const { return first_position / kOpenTokens; }
  bool is_in_slot(std::int64_t group) const { return group > last_group - kOpenGroups; }
  std::int64_t slot_place(std::int64_t group) const {
    return slot * kOpenGroups + group % kOpenGroups;
  }
  // Places of slots are 0, 1 ..., those of the area -1, -2 ...
  std::int64_t place(std::int64_t group) const {
    return is_in_slot(group) ? slot_place(group) : -1 - (area + group - first_group());
  }
};

// The layout of one layer of the cache, for kernels; kv_cache.h describes the bytes.
struct KVView {
  std::uint8_t* blocks;
  std::int64_t block_bytes;         // to the next block
  std::int64_t head_bytes;          // of one kv-head of a block
  std::int64_t tile_bytes;          // of 16 tokens of one kv-head
  std::int64_t value_offset;        // where V begins in a tile
  std::int64_t scale_offset;        // where the scales of K begin in a tile
  std::int64_t value_scale_offset;  // where those of V begin
  std::int64_t block_size;          // tokens
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t padded_dim;    // head_dim and zeros
  std::int64_t key_groups;    // scales of a token's K
  std::int64_t value_groups;  // scales of a token's V
  // Keys in bf16, [kv-heads][2 tiles][padded_dim / 2][16 tokens][2] of each group; null in formats
  // without.
  std::uint8_t* open_slots;
  std::int64_t open_slot_bytes;  // to the next slot
  std::uint8_t* open_area;
  std::int64_t open_tile_bytes;

  std::uint8_t* open_group(std::int64_t place, std::int64_t kv_head) const {
    const std::int64_t head_bytes = kOpenTiles * open_tile_bytes;
    const std::int64_t group_bytes = num_kv_heads * head_bytes;
    if (place < 0) return open_area + (-1 - place) * group_bytes + kv_head * head_bytes;
    return open_slots + place / kOpenGroups * open_slot_bytes + place % kOpenGroups * group_bytes +
           kv_head * head_bytes;
  }
  std::uint8_t* tile(std::int64_t block, std::int64_t kv_head, std::int64_t tile_of_block) const {
    return blocks + block * block_bytes + kv_head * head_bytes + tile_of_block * tile_bytes;
  }
};

// K and V of a step's tokens, [T, K, D] each, rows `stride` floats apart.
struct KVRows {
  const float* k;
  const float* v;
  std::int64_t stride;
  const std::int64_t* slots;  // [T] block * block_size + offset
  // Of formats with open keys: the groups of the request that has all of these tokens, and the
  // position of the first one.
  const OpenGroups* open_groups = nullptr;
  std::int64_t first_position = 0;
};

// Where a token's K and V go.
struct TokenPlace {
  std::uint8_t* tile;
  std::int64_t token;  // of the tile
  std::int64_t kv_head;
  const OpenGroups* open_groups;  // as in KVRows
  std::int64_t position;
};

// Queries in the form that a format's kernels read: the heads of one kv-head at neighbouring
// positions.
struct QueryRows {
  void* values;  // [num_rows, padded_dim], f32, bf16 or s8; f32 times the scale for open keys
  // [num_rows], s8 [num_rows, groups]: scale * product is a score, or a group's share of it, in
  // units of log 2, or of the cap.
  float* scales;
  std::int32_t* starts;   // [num_rows, groups], s8 only: the initial value of each sum of products
  std::int64_t num_rows;  // tokens * rows_per_token, heads of a token side by side
  std::int64_t rows_per_token;  // H / K
  std::int64_t first_position;  // of the first token
};

// The part of a range that at least one of the queries sees.
struct KeyRange {
  const std::uint8_t* tiles[kRangeTiles];
  std::int64_t num_tiles;
  std::int64_t first_position;  // of tiles[0]
  bool ends_with_queries;       // the last tile is that of the queries' own positions
  // The last tiles are read here, one after the other: those of the queries' own group.
  const std::uint8_t* open_tiles;
  std::int64_t num_open_tiles;
};

struct AttentionOptions {
  float scale;
  float softcap;                 // 0: none
  std::int64_t sliding_window;   // 0: none
  const float* sinks = nullptr;  // [H]: of each head a score that has no value; null: none
};

// The results of rows over a range, or over ranges folded together. With scores s in units of log
// 2: max = max(s), total = sum(2^(s - max)), values = sum(2^(s - max) * v).
struct Partials {
  float* max;     // [rows]; -FLT_MAX where a row sees nothing
  float* total;   // [rows]
  float* values;  // [rows, padded_dim]
};

struct AttentionKernel {
  // Stores K and V of the kv-heads [begin, end) of all tokens in their slots. Threads share a step
  // by heads, because in some formats neighbouring tokens share bytes.
  void (*store)(const KVView& kv, const KVRows& rows, std::int64_t num_tokens, std::int64_t begin,
                std::int64_t end);
  // Writes row `row` of `queries` from q [D]. The other fields of `queries` must be set.
  void (*prepare)(const KVView& kv, const float* q, const AttentionOptions& options,
                  std::int64_t row, const QueryRows& queries);
  // Computes all rows over one range, and meanwhile prefetches `next`, which may be empty.
  void (*attend)(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                 const KeyRange& next, const AttentionOptions& options, const Partials& result);
  // Replaces sums of rotated values [padded_dim] by those of the values; null: none are rotated.
  void (*rotate_back)(std::int64_t padded_dim, float* values);
};

struct AttentionKernels {
  AttentionKernel kernels[kNumKVFormats];
  // Folds the result of the next range into that of the ranges before it.
  void (*fold)(const Partials& next, std::int64_t num_rows, std::int64_t padded_dim,
               const Partials& folded);
  // y [D] = values / total of one row. The score *sink, if it is given, takes part in the total.
  void (*finish)(const Partials& folded, std::int64_t row, std::int64_t padded_dim,
                 std::int64_t head_dim, const float* sink, float* y);
};

}  // namespace pellucid
