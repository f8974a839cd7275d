// The plans of a step: how attention and experts are cut into pieces for threads. No result shows
// where the cuts are.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "attention_plan.h"
#include "check.h"
#include "expert_plan.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kHeads = 8, kKVHeads = 2, kThreads = 4;
constexpr std::int64_t kMaxLength = 8192;  // 32 ranges

// Requests of `num_tokens` each, which end at these lengths.
void make(AttentionPlan& plan, const std::vector<std::int32_t>& seq_lens, std::int32_t num_tokens,
          std::int64_t sliding_window = 0) {
  std::vector<std::int32_t> query_start{0};
  for (std::size_t i = 0; i < seq_lens.size(); ++i) {
    query_start.push_back(query_start.back() + num_tokens);
  }
  const std::size_t num_bytes = plan.num_bytes();
  plan.make({static_cast<std::int64_t>(seq_lens.size()), query_start.data(), seq_lens.data()},
            sliding_window);
  CHECK(plan.num_bytes() == num_bytes);  // nothing is allocated
  CHECK(std::is_sorted(
      plan.items().begin(), plan.items().end(),
      [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; }));
}

// Four items of the same size for each thread.
void a_long_sequence_is_split() {
  AttentionPlan plan({16, 16, kMaxLength, kHeads, kKVHeads, 64, kThreads});
  for (int step = 0; step < 3; ++step) make(plan, {kMaxLength}, 1);  // each has all the memory
  CHECK(plan.items().size() == 4 * kThreads);
  for (const AttentionItem& item : plan.items()) {
    CHECK(item.split >= 0 && item.range_end - item.range_begin == 32 / (4 * kThreads / kKVHeads));
    CHECK(item.cost == kMaxLength * (8 + kHeads / kKVHeads) / (4 * kThreads / kKVHeads));
  }
}

// As many splits as there can be: one item fewer than four for each thread, all of the same cost.
void every_item_may_be_split() {
  constexpr std::int64_t kItems = 4 * kThreads - 1;
  AttentionPlan plan({kItems, kItems, kMaxLength, kHeads, 1, 64, kThreads});
  make(plan, std::vector<std::int32_t>(kItems, 1024), 1);
  CHECK(plan.items().size() == 2 * kItems);
  for (const AttentionItem& item : plan.items()) CHECK(item.range_end - item.range_begin == 2);
}

void enough_items_stay_whole() {
  AttentionPlan plan({16, 16, kMaxLength, kHeads, kKVHeads, 64, kThreads});
  make(plan, std::vector<std::int32_t>(4 * kThreads / kKVHeads, 1024), 1);
  CHECK(plan.items().size() == 4 * kThreads);
  for (const AttentionItem& item : plan.items()) CHECK(item.split == -1);
}

// Partial results have memory for two tokens at the greatest length, and none on one thread.
void splits_end_with_their_memory() {
  AttentionPlan plan({3, 3, kMaxLength, kHeads, 1, 64, kThreads});
  make(plan, {kMaxLength, kMaxLength, kMaxLength}, 1);
  const auto num_whole = std::count_if(plan.items().begin(), plan.items().end(),
                                       [](const AttentionItem& item) { return item.split < 0; });
  CHECK(num_whole == 1);
  AttentionPlan alone({1, 1, kMaxLength, kHeads, 1, 64, 1});
  make(alone, {kMaxLength}, 1);
  CHECK(alone.items().size() == 1);
}

// Reading a key costs as much as eight products with it; keys before the window are not read.
void items_cost_what_they_read_and_compute() {
  AttentionPlan plan({64, 16, kMaxLength, kHeads, 1, 64, 1});
  make(plan, {100}, 20);  // positions 80..95, and 96..99
  CHECK(plan.items().size() == 2);
  CHECK(plan.items()[0].cost == 96 * (8 + 16 * kHeads));
  CHECK(plan.items()[1].cost == 112 * (8 + 4 * kHeads));
  make(plan, {1000}, 1, /*sliding_window=*/100);  // 999, in the tile of 992, sees 893 to 999
  CHECK(plan.items().size() == 1);
  CHECK(plan.items()[0].first_key == 880);
  CHECK(plan.items()[0].cost == (1008 - 880) * (8 + kHeads));
  CHECK(plan.items()[0].range_begin == 3 && plan.items()[0].range_end == 4);
}

// Blocks of an expert are of even size, and at most 64 rows.
void experts_are_cut_evenly() {
  constexpr std::int64_t kRows = 130, kExperts = 3;
  ExpertPlan plan(kExperts, kExperts, kRows, 0, kExperts);
  const std::size_t num_bytes = plan.num_bytes();
  const std::vector<float> weights(kRows * kExperts, 0.5f);
  plan.make(weights.data(), kExperts, kRows);
  CHECK(plan.num_bytes() == num_bytes);
  CHECK(plan.groups().size() == kExperts && plan.blocks().size() == 3 * kExperts);
  for (const ExpertPlan::Group& block : plan.blocks()) {
    CHECK(block.size() == kRows / 3 || block.size() == kRows / 3 + 1);
  }
  plan.make(weights.data(), kExperts, 64);
  CHECK(plan.groups().size() == kExperts && plan.blocks().size() == kExperts);
}

// Slots are those of all experts, in whose order ranks have them; groups and blocks are the rank's.
void a_rank_computes_its_experts() {
  constexpr std::int64_t kRows = 5, kExperts = 4;
  ExpertPlan plan(kExperts, kExperts, kRows, 1, 3);
  const std::vector<float> weights(kRows * kExperts, 0.5f);
  plan.make(weights.data(), kExperts, kRows);
  CHECK(plan.num_slots() == kExperts * kRows);
  CHECK(plan.groups().size() == 2 && plan.blocks().size() == 2);
  CHECK(plan.groups()[0].expert == 1 && plan.groups()[1].expert == 2);
  CHECK(plan.own_begin() == plan.groups()[0].begin && plan.own_end() == plan.groups()[1].end);
  CHECK(plan.own_begin() == kRows && plan.own_end() == 3 * kRows);
  CHECK(plan.first_slot(kExperts) == plan.num_slots());
}

}  // namespace

int main() {
  a_long_sequence_is_split();
  every_item_may_be_split();
  enough_items_stay_whole();
  splits_end_with_their_memory();
  items_cost_what_they_read_and_compute();
  experts_are_cut_evenly();
  a_rank_computes_its_experts();
  std::printf("ok\n");
}
