// Attention over the paged cache as phases of a Program. A step is planned once for all layers that
// have the same sliding window.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "attention.h"
#include "program.h"

namespace pellucid {

// k, v [T, K, D] into the slots of a layer of step.kv_cache.
void add_store_kv(Program& program, std::int64_t layer, View k, View v, std::int64_t num_kv_heads);

// Adds attention to a program. Operands that do not fit, and steps without a cache of the shape
// that the program was made for, are std::invalid_argument as in program_ops.h.
class ProgramAttention {
 public:
  // Phases are added to `program`, which outlives this object.
  ProgramAttention(Program& program, const AttentionLimits& limits);

  // q [T, H, D] -> y [T, H, D].
  void add_attention(std::int64_t layer, View q, const AttentionOptions& options, View y);

 private:
  const std::shared_ptr<AttentionPlan>& plan_of(std::int64_t sliding_window);

  Program& program_;
  const AttentionLimits limits_;
  std::map<std::int64_t, std::shared_ptr<AttentionPlan>> plans_;  // by sliding window
};

}  // namespace pellucid
