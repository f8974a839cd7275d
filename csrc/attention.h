// Attention of a ragged batch over the paged cache, for any number of threads: a step is planned
// once as a list of items, and each layer runs the same items in any order on any threads.
//
// Arithmetic, the same for a prompt and for one token. Positions are cut into tiles of 16 and
// ranges of 256 from the start of the sequence. A query gets from each range its scores' maximum,
// the sum of the probabilities and the weighted sum of the values, from nothing but that range;
// then the ranges are folded together in order. So chunks, batches, splits over threads and block
// sizes change no bit.
//   f32   f32 throughout.
//   bf16  q and probabilities (at most 1, before their sum divides) are rounded to bf16, nearest
//         even; products are summed in f32. f32 operands would take four times as long, and
//         K and V are no more precise than this.
//   int8, int4  q and probabilities as codes of 8 bits, see kernels/attention_quantized.h.
// Exponentials are f32, within 2 ulp; the sum of the probabilities is of the unrounded ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_plan.h"
#include "kernel_table.h"
#include "kv_cache.h"

namespace pellucid {

// Bytes of scratch, aligned to 64, of each thread that runs items.
std::size_t attention_scratch_bytes(const AttentionLimits& limits);

// K and V of the kv-heads [begin, end) of a step's tokens, rounded to the cache's format.
void store_kv(const KernelTable& kernels, KVFormat format, const KVView& layer, const KVRows& rows,
              std::int64_t num_tokens, std::int64_t kv_head_begin, std::int64_t kv_head_end);

struct AttentionArrays {
  const float* q;  // [T, H, D], tokens q_stride floats apart
  std::int64_t q_stride;
  float* y;  // [T, H, D], likewise
  std::int64_t y_stride;
};

// Items [begin, end). All of a step's K and V of this layer have been stored; between two layers
// that use the same plan the threads meet.
void run_attention(const KernelTable& kernels, KVFormat format, const KVView& layer,
                   AttentionPlan& plan, const AttentionOptions& options,
                   const AttentionArrays& arrays, std::int64_t begin, std::int64_t end,
                   void* scratch);

}  // namespace pellucid
