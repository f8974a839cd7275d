// The rows of a step, grouped by the experts that they chose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pellucid {

// What one row asks of one expert takes a slot. Slots lie side by side by expert, and by row within
// an expert; a row's own are in the order of its experts.
class ExpertPlan {
 public:
  // Neighbouring slots of one expert.
  struct Group {
    std::int32_t expert;
    std::int32_t begin, end;  // slots

    std::int64_t size() const { return end - begin; }
  };

  // For steps of at most `max_rows` rows, each of which asks at most `num_chosen` experts. This
  // process computes the experts [own_begin, own_end).
  ExpertPlan(std::int64_t num_experts, std::int64_t num_chosen, std::int64_t max_rows,
             std::int64_t own_begin, std::int64_t own_end);

  // Plans a step by its weights [num_rows, num_experts]: a row asks each expert whose weight is not
  // 0. Beyond `num_chosen` of a row they are not read. Allocates nothing.
  void make(const float* weights, std::int64_t stride, std::int64_t num_rows);

  std::int64_t num_slots() const { return num_slots_; }
  // Where the slots of an expert begin; of num_experts, where those of the last one end.
  std::int64_t first_slot(std::int64_t expert) const {
    return first_slots_[static_cast<std::size_t>(expert)];
  }
  // The slots of the experts that this process computes.
  std::int64_t own_begin() const { return first_slot(own_begin_); }
  std::int64_t own_end() const { return first_slot(own_end_); }
  std::int64_t max_slots() const { return static_cast<std::int64_t>(slot_rows_.size()); }
  // One for each own expert that any row asks.
  const std::vector<Group>& groups() const { return groups_; }
  // The same slots in pieces of about the same size, at most `kMaxBlockRows` each.
  const std::vector<Group>& blocks() const { return blocks_; }

  std::int32_t row_of(std::int64_t slot) const {
    return slot_rows_[static_cast<std::size_t>(slot)];
  }
  // What the output of a slot's expert is multiplied with.
  float weight_of(std::int64_t slot) const { return slot_weights_[static_cast<std::size_t>(slot)]; }
  // Calls f(slot) for each slot of a row, the lowest expert first.
  template <class F>
  void for_each_slot(std::int64_t row, F f) const {
    const std::int32_t* const slots = row_slots_.data() + row * num_chosen_;
    for (std::int32_t i = 0; i < row_counts_[static_cast<std::size_t>(row)]; ++i) f(slots[i]);
  }

  std::size_t num_bytes() const;

  // What lies between the matrices of an expert stays in a second-level cache.
  static constexpr std::int64_t kMaxBlockRows = 64;

 private:
  std::int64_t num_experts_;
  std::int64_t num_chosen_;
  std::int64_t own_begin_, own_end_;  // experts
  std::int64_t num_slots_ = 0;
  std::vector<Group> groups_;
  std::vector<Group> blocks_;
  std::vector<std::int32_t> slot_rows_;
  std::vector<float> slot_weights_;
  std::vector<std::int32_t> row_slots_;    // [rows, num_chosen]
  std::vector<std::int32_t> row_counts_;   // [rows]
  std::vector<std::int32_t> next_slots_;   // [experts]
  std::vector<std::int32_t> first_slots_;  // [experts + 1]
};

}  // namespace pellucid
