// Cuts a step's attention into items, and long sequences into splits.
#include "attention_plan.h"

#include <algorithm>
#include <cassert>
#include <tuple>

#include "rounding.h"

namespace pellucid {
namespace {

// Where a step has fewer items than this per thread, long ones are split, so that all threads
// finish at about the same time.
constexpr std::int64_t kItemsPerThread = 4;

constexpr std::int64_t kMaxPartialFloats = 64 << 20;  // 256 MiB

// Reading a key costs about as much as multiplying it with eight queries.
std::int64_t cost_of(std::int64_t num_keys, std::int64_t num_rows) {
  constexpr std::int64_t kReadingCost = 8;
  return num_keys * (kReadingCost + num_rows);
}

// The n tokens of a request in a step are in at most n / 16 + 2 tiles, and in at most n.
std::int64_t max_tiles(const AttentionLimits& limits) {
  const std::int64_t num_tiles = limits.max_tokens / kTileTokens + 2 * limits.max_requests;
  return std::min(num_tiles, limits.max_tokens) * limits.num_kv_heads;
}

// Memory for the partial results of splits: twice that of one token at the greatest length, but
// bounded, because a model may declare any length. An item that finds no memory is not split.
std::int64_t max_partial_floats(const AttentionLimits& limits) {
  if (limits.num_threads == 1) return 0;
  const std::int64_t num_ranges = ceil_div(limits.max_seq_len, kRangeTokens);
  const std::int64_t floats_per_range = 2 * limits.num_heads * (limits.padded_dim() + 2);
  return std::min(num_ranges, kMaxPartialFloats / floats_per_range) * floats_per_range;
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionLimits& limits)
    : limits_(limits),
      partials_(static_cast<std::size_t>(max_partial_floats(limits)) * sizeof(float)) {
  assert(limits.num_threads >= 1 && limits.max_tokens >= 1 && limits.max_requests >= 1);
  assert(limits.num_heads % limits.num_kv_heads == 0);
  // A split's items are at most 1 + cost / target, and its cost exceeds the target.
  const auto max_splits = static_cast<std::size_t>(kItemsPerThread * limits.num_threads);
  items_.reserve(static_cast<std::size_t>(max_tiles(limits)) + 2 * max_splits);
  splits_.reserve(max_splits);
  num_finished_ = std::vector<std::atomic<std::int32_t>>(max_splits);
}

std::size_t AttentionPlan::num_bytes() const {
  return partials_.size() + items_.capacity() * sizeof(AttentionItem) +
         splits_.capacity() * (sizeof(Split) + sizeof(std::atomic<std::int32_t>));
}

// Calls f(item) for every request and tile of positions, with kv-head 0 and all ranges.
template <class F>
void AttentionPlan::for_each_tile(F f) const {
  for (std::int64_t b = 0; b < batch_.num_requests; ++b) {
    const std::int64_t end = batch_.seq_lens[b];
    const std::int64_t num_rows = batch_.query_start[b + 1] - batch_.query_start[b];
    const std::int64_t begin = end - num_rows;
    assert(begin >= 0 && num_rows >= 1 && end <= limits_.max_seq_len);
    for (std::int64_t position = begin; position < end;) {
      const std::int64_t tile_begin = position / kTileTokens * kTileTokens;
      const std::int64_t tile_end = tile_begin + kTileTokens;
      const std::int64_t num_tokens = std::min(tile_end, end) - position;
      const std::int64_t first_visible = first_seen(position, sliding_window_);
      AttentionItem item{};
      item.request = static_cast<std::int32_t>(b);
      item.first_token = static_cast<std::int32_t>(batch_.query_start[b] + position - begin);
      item.num_tokens = static_cast<std::int32_t>(num_tokens);
      item.first_position = static_cast<std::int32_t>(position);
      item.first_key = static_cast<std::int32_t>(first_visible / kTileTokens * kTileTokens);
      item.range_begin = static_cast<std::int32_t>(first_visible / kRangeTokens);
      item.range_end = static_cast<std::int32_t>(ceil_div(tile_end, kRangeTokens));
      item.split = -1;
      item.cost = cost_of(tile_end - item.first_key, num_tokens * limits_.heads_per_kv_head());
      f(item);
      position += num_tokens;
    }
  }
}

void AttentionPlan::make(const RaggedBatch& batch, std::int64_t sliding_window) {
  assert(batch.num_requests <= limits_.max_requests);
  assert(batch.num_requests == 0 || batch.query_start[batch.num_requests] <= limits_.max_tokens);
  batch_ = batch;
  sliding_window_ = sliding_window;
  items_.clear();
  splits_.clear();
  num_floats_used_ = 0;

  std::int64_t total_cost = 0;
  for_each_tile([&](const AttentionItem& item) { total_cost += item.cost; });
  const std::int64_t target_cost =
      total_cost * limits_.num_kv_heads / (kItemsPerThread * limits_.num_threads) + 1;
  for_each_tile([&](AttentionItem item) {
    for (item.kv_head = 0; item.kv_head < limits_.num_kv_heads; ++item.kv_head) {
      add(item, target_cost);
    }
  });
  std::sort(items_.begin(), items_.end(), [](const AttentionItem& a, const AttentionItem& b) {
    return std::tuple(-a.cost, a.kv_head, a.first_token, a.range_begin) <
           std::tuple(-b.cost, b.kv_head, b.first_token, b.range_begin);
  });
}

std::int64_t AttentionPlan::partial_floats(const AttentionItem& item) const {
  return item.num_tokens * limits_.heads_per_kv_head() * (limits_.padded_dim() + 2);
}

void AttentionPlan::add(AttentionItem item, std::int64_t target_cost) {
  const std::int64_t num_ranges = item.range_end - item.range_begin;
  const std::int64_t num_items = std::min(num_ranges, ceil_div(item.cost, target_cost));
  const std::int64_t num_floats = num_ranges * partial_floats(item);
  const auto capacity = static_cast<std::int64_t>(partials_.size() / sizeof(float));
  if (num_items == 1 || num_floats_used_ + num_floats > capacity) {
    items_.push_back(item);
    return;
  }
  const Split split = {num_floats_used_, item.range_begin, item.range_end,
                       static_cast<std::int32_t>(num_items)};
  num_floats_used_ += num_floats;
  item.split = static_cast<std::int32_t>(splits_.size());
  num_finished_[splits_.size()].store(0, std::memory_order_relaxed);
  splits_.push_back(split);

  const std::int64_t whole_cost = item.cost;
  for (std::int64_t i = 0; i < num_items; ++i) {
    const std::int64_t begin = num_ranges * i / num_items, end = num_ranges * (i + 1) / num_items;
    item.range_begin = static_cast<std::int32_t>(split.range_begin + begin);
    item.range_end = static_cast<std::int32_t>(split.range_begin + end);
    item.cost = whole_cost * (end - begin) / num_ranges;
    items_.push_back(item);
  }
}

Partials AttentionPlan::partials(const AttentionItem& item, std::int64_t range) const {
  const Split& split = splits_[static_cast<std::size_t>(item.split)];
  assert(range >= split.range_begin && range < split.range_end);
  auto* const values = reinterpret_cast<float*>(const_cast<std::byte*>(partials_.data())) +
                       split.first_partial + (range - split.range_begin) * partial_floats(item);
  const std::int64_t num_rows = item.num_tokens * limits_.heads_per_kv_head();
  float* const max = values + num_rows * limits_.padded_dim();
  return {max, max + num_rows, values};
}

std::int64_t AttentionPlan::split_begin(const AttentionItem& item) const {
  return splits_[static_cast<std::size_t>(item.split)].range_begin;
}

std::int64_t AttentionPlan::split_end(const AttentionItem& item) const {
  return splits_[static_cast<std::size_t>(item.split)].range_end;
}

bool AttentionPlan::finish_item(const AttentionItem& item) {
  const auto split = static_cast<std::size_t>(item.split);
  const std::int32_t num_items = splits_[split].num_items;
  if (num_finished_[split].fetch_add(1, std::memory_order_acq_rel) + 1 < num_items) return false;
  num_finished_[split].store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace pellucid
