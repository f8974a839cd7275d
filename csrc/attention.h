// Attention of a ragged batch over the paged cache, on any number of threads. A step is planned
// once as a list of items. Each layer runs the same items, in any order and on any threads.
//
// The arithmetic is the same for a prompt and for one token. Positions are cut into tiles of 16 and
// ranges of 256, counted from the start of the sequence. For each range a query computes the
// maximum of its scores, the sum of the probabilities and the weighted sum of the values, from that
// range alone. Then the ranges are folded together in order. So chunks, batches, splits over
// threads and block sizes change no bit.
//   f32   f32 throughout.
//   bf16  q and the probabilities (at most 1, not yet divided by their sum) are rounded to bf16,
//         nearest even; products are summed in f32. f32 operands would take four times as long, and
//         K and V are no more precise than bf16.
//   int8, int4, int8,int4  q and the probabilities are codes of 8 bits
//         (kernels/attention_quantized.h); with int4 keys, q is rounded to bf16 for its own group
//         of positions (kernels/dimension_keys.h).
// Exponentials are f32, within 2 ulp. The sum of the probabilities is that of the unrounded ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_plan.h"
#include "kernel_table.h"
#include "kv_cache.h"

namespace pellucid {

// Bytes of scratch, aligned to 64, of each thread that runs items.
std::size_t attention_scratch_bytes(const AttentionLimits& limits);

// Stores K and V of the kv-heads [begin, end) of a step's tokens, rounded to the cache's format.
void store_kv(const KernelTable& kernels, KVFormat format, const KVView& layer, const KVRows& rows,
              std::int64_t num_tokens, std::int64_t kv_head_begin, std::int64_t kv_head_end);

struct AttentionArrays {
  const float* q;  // [T, H, D], tokens q_stride floats apart
  std::int64_t q_stride;
  float* y;  // [T, H, D], likewise
  std::int64_t y_stride;
  const std::int32_t* block_tables;  // [B, block_table_stride] of the layer's group
  std::int64_t block_table_stride;
  // [B] the row of block_tables, and of open_groups, of each request of the plan; null: row b of
  // request b.
  const std::int32_t* table_rows = nullptr;
  const OpenGroups* open_groups = nullptr;  // of formats with open keys
};

// Runs the items [begin, end) of a layer. All K and V of the step must have been stored in this
// layer before. Between two layers that use the same plan there must be a barrier.
void run_attention(const KernelTable& kernels, KVFormat format, const KVView& layer,
                   AttentionPlan& plan, const AttentionOptions& options,
                   const AttentionArrays& arrays, std::int64_t begin, std::int64_t end,
                   void* scratch);

}  // namespace pellucid
