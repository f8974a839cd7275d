// Computes attention over the paged cache, item by item: one range of keys at a time, folded in
// order.
#include "attention.h"

#include <algorithm>
#include <cassert>

#include "rounding.h"

namespace pellucid {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kRowsAhead = 16;  // about the rows computed during one memory access

std::int64_t max_rows(const AttentionLimits& limits) {
  return std::min<std::int64_t>(kTileTokens, limits.max_tokens) * limits.heads_per_kv_head();
}

// The parts of a thread's scratch, each on cache lines of its own.
class Scratch {
 public:
  explicit Scratch(void* memory) : begin_(reinterpret_cast<std::uintptr_t>(memory)) {}

  template <class T>
  T* take(std::int64_t size) {
    T* const part = reinterpret_cast<T*>(begin_ + num_bytes_);
    num_bytes_ +=
        static_cast<std::size_t>(round_up(size * static_cast<std::int64_t>(sizeof(T)), kAlignment));
    return part;
  }
  Partials take_partials(std::int64_t num_rows, std::int64_t padded_dim) {
    Partials partials;
    partials.max = take<float>(num_rows);
    partials.total = take<float>(num_rows);
    partials.values = take<float>(num_rows * padded_dim);
    return partials;
  }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  std::uintptr_t begin_;
  std::size_t num_bytes_ = 0;
};

struct Buffers {
  QueryRows queries;
  Partials next;    // what the latest range gave
  Partials folded;  // what all ranges so far gave
};

Buffers buffers_in(Scratch& scratch, std::int64_t num_rows, std::int64_t padded_dim) {
  Buffers buffers{};
  buffers.queries.values = scratch.take<float>(num_rows * padded_dim);
  const std::int64_t num_groups = num_rows * (padded_dim / kKVGroupDims);
  buffers.queries.scales = scratch.take<float>(num_groups);
  buffers.queries.starts = scratch.take<std::int32_t>(num_groups);
  buffers.next = scratch.take_partials(num_rows, padded_dim);
  buffers.folded = scratch.take_partials(num_rows, padded_dim);
  return buffers;
}

// Runs the items of one layer, one after the other.
struct AttentionRun {
  const AttentionKernels& kernels;
  const AttentionKernel& kernel;
  const KVView& layer;
  AttentionPlan& plan;
  const AttentionOptions& options;
  const AttentionArrays& arrays;
  Buffers buffers;

  // `following` is what this thread is likely to run next, if anything.
  void run(const AttentionItem& item, const AttentionItem* following) {
    prepare(item);
    const std::int64_t num_rows = buffers.queries.num_rows;
    const bool is_whole = item.split < 0;
    KeyRange keys = key_range(item, item.range_begin);
    for (std::int64_t range = item.range_begin; range < item.range_end; ++range) {
      KeyRange next{};
      if (range + 1 < item.range_end) {
        next = key_range(item, range + 1);
      } else if (following != nullptr) {
        next = key_range(*following, following->range_begin);
      }
      const bool is_first = range == item.range_begin;
      Partials result = is_first ? buffers.folded : buffers.next;
      if (!is_whole) result = plan.partials(item, range);
      kernel.attend(layer, buffers.queries, keys, next, options, result);
      if (is_whole && !is_first) kernels.fold(result, num_rows, layer.padded_dim, buffers.folded);
      keys = next;
    }
    if (is_whole) {
      finish(item, buffers.folded);
    } else if (plan.finish_item(item)) {
      const std::int64_t first = plan.split_begin(item);
      const Partials folded = plan.partials(item, first);
      for (std::int64_t range = first + 1; range < plan.split_end(item); ++range) {
        kernels.fold(plan.partials(item, range), num_rows, layer.padded_dim, folded);
      }
      finish(item, folded);
    }
  }

 private:
  std::int64_t rows_per_token() const { return plan.limits().heads_per_kv_head(); }

  // Where head `row` of the item stands in a token's [H, D].
  std::int64_t offset(const AttentionItem& item, std::int64_t row, std::int64_t stride) const {
    const std::int64_t token = item.first_token + row / rows_per_token();
    const std::int64_t head = item.kv_head * rows_per_token() + row % rows_per_token();
    return token * stride + head * layer.head_dim;
  }

  void prepare(const AttentionItem& item) {
    QueryRows& queries = buffers.queries;
    queries.num_rows = item.num_tokens * rows_per_token();
    queries.rows_per_token = rows_per_token();
    queries.first_position = item.first_position;
    for (std::int64_t row = 0; row < queries.num_rows; ++row) {
      fetch_ahead(item, row + kRowsAhead);
      kernel.prepare(layer, arrays.q + offset(item, row, arrays.q_stride), options, row, queries);
    }
  }

  // A row of q, soon to be read, and of y, to be written at the end.
  void fetch_ahead(const AttentionItem& item, std::int64_t row) const {
    if (row >= buffers.queries.num_rows) return;
    const float* const q = arrays.q + offset(item, row, arrays.q_stride);
    const float* const y = arrays.y + offset(item, row, arrays.y_stride);
    constexpr std::int64_t kLineFloats = kAlignment / sizeof(float);
    for (std::int64_t d = 0; d < layer.head_dim; d += kLineFloats) {
      __builtin_prefetch(q + d);
      __builtin_prefetch(y + d, 1);
    }
  }

  void finish(const AttentionItem& item, const Partials& folded) const {
    for (std::int64_t row = 0; row < buffers.queries.num_rows; ++row) {
      const std::int64_t head = item.kv_head * rows_per_token() + row % rows_per_token();
      if (kernel.rotate_back != nullptr) {
        kernel.rotate_back(layer.padded_dim, folded.values + row * layer.padded_dim);
      }
      kernels.finish(folded, row, layer.padded_dim, layer.head_dim,
                     options.sinks == nullptr ? nullptr : options.sinks + head,
                     arrays.y + offset(item, row, arrays.y_stride));
    }
  }

  bool has_open_keys() const { return layer.open_tile_bytes > 0; }

  KeyRange key_range(const AttentionItem& item, std::int64_t range) const {
    const std::int64_t own_tile = item.first_position / kTileTokens;
    std::int64_t first_tile = item.first_key / kTileTokens;
    if (has_open_keys()) first_tile = first_tile / kOpenTiles * kOpenTiles;
    const std::int64_t begin = std::max<std::int64_t>(range * kRangeTiles, first_tile);
    const std::int64_t end = std::min((range + 1) * kRangeTiles, own_tile + 1);
    const std::int64_t table_row =
        arrays.table_rows == nullptr ? item.request : arrays.table_rows[item.request];
    const std::int32_t* const block_table =
        arrays.block_tables + table_row * arrays.block_table_stride;
    const std::int64_t tiles_per_block = layer.block_size / kTileTokens;
    KeyRange keys;
    keys.num_tiles = end - begin;
    keys.first_position = begin * kTileTokens;
    keys.ends_with_queries = end == own_tile + 1;
    for (std::int64_t t = begin; t < end; ++t) {
      keys.tiles[t - begin] =
          layer.tile(block_table[t / tiles_per_block], item.kv_head, t % tiles_per_block);
    }
    keys.num_open_tiles = 0;
    if (has_open_keys() && keys.ends_with_queries) {
      const std::int64_t own_group = own_tile / kOpenTiles;
      keys.num_open_tiles = own_tile + 1 - own_group * kOpenTiles;
      keys.open_tiles =
          layer.open_group(arrays.open_groups[table_row].place(own_group), item.kv_head);
    }
    return keys;
  }
};

}  // namespace

std::size_t attention_scratch_bytes(const AttentionLimits& limits) {
  Scratch scratch(nullptr);
  buffers_in(scratch, max_rows(limits), limits.padded_dim());
  return scratch.num_bytes();
}

void store_kv(const KernelTable& kernels, KVFormat format, const KVView& layer, const KVRows& rows,
              std::int64_t num_tokens, std::int64_t kv_head_begin, std::int64_t kv_head_end) {
  assert(0 <= kv_head_begin && kv_head_begin <= kv_head_end && kv_head_end <= layer.num_kv_heads);
  kernels.attention.kernels[static_cast<int>(format)].store(layer, rows, num_tokens, kv_head_begin,
                                                            kv_head_end);
}

void run_attention(const KernelTable& kernels, KVFormat format, const KVView& layer,
                   AttentionPlan& plan, const AttentionOptions& options,
                   const AttentionArrays& arrays, std::int64_t begin, std::int64_t end,
                   void* scratch) {
  assert(layer.num_kv_heads == plan.limits().num_kv_heads);
  assert(layer.head_dim == plan.limits().head_dim);
  assert(options.sliding_window == plan.sliding_window());
  Scratch parts(scratch);
  AttentionRun run{kernels.attention,
                   kernels.attention.kernels[static_cast<int>(format)],
                   layer,
                   plan,
                   options,
                   arrays,
                   buffers_in(parts, max_rows(plan.limits()), plan.limits().padded_dim())};
  const std::vector<AttentionItem>& items = plan.items();
  for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
    run.run(items[i], i + 1 < items.size() ? &items[i + 1] : nullptr);
  }
}

}  // namespace pellucid
