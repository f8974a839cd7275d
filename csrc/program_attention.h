// ProgramAttention: attention over the paged cache as phases of a Program. A step is planned once
// for all layers with the same sliding window and the same rows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
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

  // Adds the phase that computes attention: q [T or R, H, D] -> y, likewise. `sinks` [H] are those
  // of the options, or null.
  void add_attention(RowSet rows, KVPlace place, View q, AttentionOptions options, View y,
                     std::shared_ptr<const std::vector<float>> sinks = nullptr);

 private:
  // The rows with logits as requests of one row each.
  struct SingleRows {
    std::vector<std::int32_t> query_start;  // [R + 1]
    std::vector<std::int32_t> seq_lens;     // [R]
    std::vector<std::int32_t> requests;     // [R] of the step

    void make(const Step& step);
  };

  const std::shared_ptr<AttentionPlan>& plan_of(RowSet rows, std::int64_t sliding_window);

  Program& program_;
  const AttentionLimits limits_;
  std::map<std::pair<RowSet, std::int64_t>, std::shared_ptr<AttentionPlan>> plans_;
  std::shared_ptr<SingleRows> single_rows_;
};

}  // namespace pellucid
