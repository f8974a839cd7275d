// Groups the rows of a step by expert: counts, then places.
#include "expert_plan.h"

#include <algorithm>

#include "rounding.h"

namespace pellucid {

ExpertPlan::ExpertPlan(std::int64_t num_experts, std::int64_t num_chosen, std::int64_t max_rows,
                       std::int64_t own_begin, std::int64_t own_end)
    : num_experts_(num_experts), num_chosen_(num_chosen), own_begin_(own_begin), own_end_(own_end) {
  const std::int64_t max_slots = max_rows * num_chosen;
  const std::int64_t max_groups = std::min(num_experts, max_slots);
  groups_.reserve(static_cast<std::size_t>(max_groups));
  blocks_.reserve(static_cast<std::size_t>(max_groups + max_slots / kMaxBlockRows));
  slot_rows_.resize(static_cast<std::size_t>(max_slots));
  slot_weights_.resize(static_cast<std::size_t>(max_slots));
  row_slots_.resize(static_cast<std::size_t>(max_slots));
  row_counts_.resize(static_cast<std::size_t>(max_rows));
  next_slots_.resize(static_cast<std::size_t>(num_experts));
  first_slots_.resize(static_cast<std::size_t>(num_experts) + 1);
}

void ExpertPlan::make(const float* weights, std::int64_t stride, std::int64_t num_rows) {
  std::fill(next_slots_.begin(), next_slots_.end(), 0);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    // The experts first; their slots when all are counted.
    std::int32_t* const experts = row_slots_.data() + row * num_chosen_;
    std::int32_t count = 0;
    for (std::int64_t expert = 0; expert < num_experts_ && count < num_chosen_; ++expert) {
      if (weights[row * stride + expert] == 0.0f) continue;
      experts[count++] = static_cast<std::int32_t>(expert);
      ++next_slots_[static_cast<std::size_t>(expert)];
    }
    row_counts_[static_cast<std::size_t>(row)] = count;
  }

  groups_.clear();
  blocks_.clear();
  std::int32_t begin = 0;
  for (std::int32_t expert = 0; expert < num_experts_; ++expert) {
    std::int32_t& next_slot = next_slots_[static_cast<std::size_t>(expert)];
    const Group group{expert, begin, begin + next_slot};
    first_slots_[static_cast<std::size_t>(expert)] = next_slot = begin;
    begin = group.end;
    if (group.size() == 0 || expert < own_begin_ || expert >= own_end_) continue;
    groups_.push_back(group);
    const std::int64_t num_blocks = ceil_div(group.size(), kMaxBlockRows);
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      blocks_.push_back(
          {expert, group.begin + static_cast<std::int32_t>(group.size() * i / num_blocks),
           group.begin + static_cast<std::int32_t>(group.size() * (i + 1) / num_blocks)});
    }
  }
  first_slots_.back() = begin;
  num_slots_ = begin;

  for (std::int64_t row = 0; row < num_rows; ++row) {
    std::int32_t* const slots = row_slots_.data() + row * num_chosen_;
    for (std::int32_t i = 0; i < row_counts_[static_cast<std::size_t>(row)]; ++i) {
      const std::int32_t expert = slots[i];
      const std::int32_t slot = next_slots_[static_cast<std::size_t>(expert)]++;
      slot_rows_[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(row);
      slot_weights_[static_cast<std::size_t>(slot)] = weights[row * stride + expert];
      slots[i] = slot;
    }
  }
}

std::size_t ExpertPlan::num_bytes() const {
  const std::size_t num_groups = groups_.capacity() + blocks_.capacity();
  const std::size_t num_integers = slot_rows_.size() + row_slots_.size() + row_counts_.size() +
                                   next_slots_.size() + first_slots_.size();
  return num_groups * sizeof(Group) + num_integers * sizeof(std::int32_t) +
         slot_weights_.size() * sizeof(float);
}

}  // namespace pellucid
