// AttentionPlan: cuts a step's attention into items that threads take one by one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "aligned_buffer.h"
#include "kernels/attention_kernels.h"

namespace pellucid {

// The requests of a step, as in ForwardBatch.
struct RaggedBatch {
  std::int64_t num_requests;
  const std::int32_t* query_start;  // [B + 1]
  const std::int32_t* seq_lens;     // [B], with the step's own tokens
};

struct AttentionLimits {
  std::int64_t max_tokens;    // of a step
  std::int64_t max_requests;  // of a step
  std::int64_t max_seq_len;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  int num_threads;

  std::int64_t heads_per_kv_head() const { return num_heads / num_kv_heads; }
  // Dimensions with the padding of any format.
  std::int64_t padded_dim() const {
    return (head_dim + kKVGroupDims - 1) / kKVGroupDims * kKVGroupDims;
  }
};

// The unit of work: the queries of one request and one kv-head within one tile of positions, over
// some ranges of keys.
struct AttentionItem {
  std::int32_t request;
  std::int32_t kv_head;
  std::int32_t first_token;  // row of the batch
  std::int32_t num_tokens;
  std::int32_t first_position;
  std::int32_t first_key;    // of the first tile of keys that any query of this tile sees
  std::int32_t range_begin;  // in units of 256 positions
  std::int32_t range_end;
  std::int32_t split;  // the split that it belongs to; -1: the item has all ranges of its queries
  std::int64_t cost;   // in arbitrary units
};

class AttentionPlan {
 public:
  // Allocates the memory of the largest step within the limits.
  explicit AttentionPlan(const AttentionLimits& limits);

  // Plans a step; `sliding_window` 0 means none. Splits long sequences over their length where
  // there are too few queries to keep all threads busy. The batch's arrays must live as long as the
  // plan is used. Allocates nothing.
  void make(const RaggedBatch& batch, std::int64_t sliding_window);

  // In order of falling cost, so that threads which take them one by one finish together.
  const std::vector<AttentionItem>& items() const { return items_; }
  const AttentionLimits& limits() const { return limits_; }
  const RaggedBatch& batch() const { return batch_; }
  std::int64_t sliding_window() const { return sliding_window_; }
  std::size_t num_bytes() const;

  // Where an item of a split stores the result of one range.
  Partials partials(const AttentionItem& item, std::int64_t range) const;
  // The ranges of the whole split that an item belongs to, [begin, end).
  std::int64_t split_begin(const AttentionItem& item) const;
  std::int64_t split_end(const AttentionItem& item) const;
  // Call it once for each item of a split, when the item's ranges are computed. Returns true for
  // the last item of the split: its thread sees the results of the others, and afterwards the plan
  // can be used for another layer.
  bool finish_item(const AttentionItem& item);

 private:
  struct Split {
    std::int64_t first_partial;  // in floats
    std::int32_t range_begin;
    std::int32_t range_end;
    std::int32_t num_items;
  };

  template <class F>
  void for_each_tile(F f) const;
  void add(AttentionItem item, std::int64_t target_cost);
  std::int64_t partial_floats(const AttentionItem& item) const;

  AttentionLimits limits_;
  RaggedBatch batch_{};
  std::int64_t sliding_window_;
  std::vector<AttentionItem> items_;
  std::vector<Split> splits_;
  std::vector<std::atomic<std::int32_t>> num_finished_;  // items of each split
  AlignedBuffer partials_;
  std::int64_t num_floats_used_ = 0;  // of partials_
};

}  // namespace pellucid
