// ProgramAttention: attention over the paged cache as phases of a Program. A step is planned once
// for all layers with the same sliding window.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "attention.h"
#include "program.h"

namespace pellucid {

// Adds the phase that stores k, v [T, K, D] in the slots of a layer of step.kv_cache.
void add_store_kv(Program& program, KVPlace place, View k, View v, std::int64_t num_kv_heads,
                  std::int64_t head_dim);

// Adds attention to a program. Throws std::invalid_argument for operands that do not fit; running a
// step throws it if the step's cache has another shape than the program was made for.
class ProgramAttention {
 public:
  // Phases are added to `program`, which outlives this object.
  ProgramAttention(Program& program, const AttentionLimits& limits);

  // Adds the phase that computes attention: q [T, H, D] -> y [T, H, D]. `sinks` [H] are those of
  // the options, or null.
  void add_attention(KVPlace place, View q, AttentionOptions options, View y,
                     std::shared_ptr<const std::vector<float>> sinks = nullptr);

 private:
  const std::shared_ptr<AttentionPlan>& plan_of(std::int64_t sliding_window);

  Program& program_;
  const AttentionLimits limits_;
  std::map<std::int64_t, std::shared_ptr<AttentionPlan>> plans_;  // by sliding window
};

}  // namespace pellucid
