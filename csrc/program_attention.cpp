#include "program_attention.h"

#include <cassert>
#include <cstddef>
#include <utility>

namespace pellucid {
namespace {

std::size_t round_up_to_line(std::size_t num_bytes) {
  return (num_bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace

ProgramAttention::ProgramAttention(Program& program, const AttentionLimits& limits)
    : program_(program), limits_(limits) {}

const std::shared_ptr<AttentionPlan>& ProgramAttention::plan_of(std::int64_t sliding_window) {
  std::shared_ptr<AttentionPlan>& plan = plans_[sliding_window];
  if (plan == nullptr) {
    plan = std::make_shared<AttentionPlan>(limits_);
    program_.add_own_bytes(plan->num_bytes());
    program_.add_preparation([plan = plan, sliding_window](const Step& step) {
      const RaggedBatch batch{step.num_requests, step.query_start, step.seq_lens, step.block_tables,
                              step.max_blocks};
      plan->make(batch, sliding_window);
    });
  }
  return plan;
}

void add_store_kv(Program& program, std::int64_t layer, View k, View v, std::int64_t num_kv_heads) {
  assert(program.stride(k) == program.stride(v));
  program.add_phase(
      "store_kv", {k.buffer, v.buffer},
      [=](const Step& step) { return step.num_tokens > 0 ? num_kv_heads : 0; },
      [](const Step&) { return 1; },
      [=, &program](const Step& step, const Share& share) {
        const KVRows rows{program.row(k, 0), program.row(v, 0), program.stride(k),
                          step.slot_mapping};
        store_kv(program.kernels(), step.kv_cache->shape().format, step.kv_cache->layer(layer),
                 rows, step.num_tokens, share.begin, share.end);
      });
}

void ProgramAttention::add_attention(std::int64_t layer, View q, const AttentionOptions& options,
                                     View y) {
  const std::shared_ptr<AttentionPlan> plan = plan_of(options.sliding_window);
  const std::size_t bytes_per_thread = round_up_to_line(attention_scratch_bytes(limits_));
  const auto num_threads = static_cast<std::size_t>(program_.num_threads());
  const int scratch = program_.add_scratch(num_threads * bytes_per_thread);
  program_.add_phase(
      "attention", {q.buffer, y.buffer, scratch},
      [plan](const Step&) { return static_cast<std::int64_t>(plan->items().size()); },
      [](const Step&) { return 1; },
      [=, &program = program_](const Step& step, const Share& share) {
        const AttentionArrays arrays{program.row(q, 0), program.stride(q), program.row(y, 0),
                                     program.stride(y)};
        run_attention(
            program.kernels(), step.kv_cache->shape().format, step.kv_cache->layer(layer), *plan,
            options, arrays, share.begin, share.end,
            program.scratch(scratch) + static_cast<std::size_t>(share.thread) * bytes_per_thread);
      });
}

}  // namespace pellucid
