// The table of attention kernels for one type of vectors: flash attention (Dao et al. 2022) over
// one range of keys at a time, for rows of queries that share a kv-head.
#pragma once

#include <cstdint>

#include "attention_float.h"
#include "attention_kernels.h"
#include "attention_quantized.h"
#include "softmax.h"

namespace pellucid {
namespace {

// The keys of a range that a row sees, [begin, end); the bounds may lie outside of the range.
struct VisibleKeys {
  std::int64_t begin;
  std::int64_t end;
};

inline VisibleKeys visible_keys(const QueryRows& queries, const KeyRange& keys,
                                std::int64_t sliding_window, std::int64_t row) {
  const std::int64_t position = queries.first_position + row / queries.rows_per_token;
  const std::int64_t end = position + 1 - keys.first_position;
  return {sliding_window > 0 ? end - sliding_window : 0, end};
}

// The steps of `attend` for kRows rows.
template <class F>
struct RowTile {
  template <int kRows>
  static void run(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                  const AttentionOptions& options, std::int64_t row, TilePrefetcher& prefetcher,
                  const Partials& result) {
    alignas(64) float scores[kRows][kRangeTokens];
    std::int64_t visible_ends[kRows];

    F::template scores<kRows>(kv, queries, keys, row, prefetcher, scores[0]);
    for (int r = 0; r < kRows; ++r) {
      const VisibleKeys visible = visible_keys(queries, keys, options.sliding_window, row + r);
      visible_ends[r] = visible.end;
      if (options.softcap > 0) softmax::cap_scores(options.softcap, keys.num_tiles, scores[r]);
      softmax::hide_scores(visible.begin, visible.end, keys.num_tiles * kTileTokens, scores[r]);
      result.max[row + r] = softmax::greatest(keys.num_tiles, scores[r]);
    }
    F::template values<kRows>(
        kv, keys, scores[0], visible_ends, prefetcher,
        {result.max + row, result.total + row, result.values + row * kv.padded_dim});
  }
};

template <class F>
void attend(const KVView& kv, const QueryRows& queries, const KeyRange& keys, const KeyRange& next,
            const AttentionOptions& options, const Partials& result) {
  // Blocks of even size: eight rows are 4 + 4, not 6 + 2.
  const std::int64_t num_blocks = (queries.num_rows + F::kMaxRows - 1) / F::kMaxRows;
  const std::int64_t rows_per_block = queries.num_rows / num_blocks;
  TilePrefetcher prefetcher(kv, next,
                            num_blocks * F::num_steps(kv, rows_per_block) * keys.num_tiles);
  std::int64_t row = 0;
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const std::int64_t num_rows = (queries.num_rows - row) / (num_blocks - block);
    with_rows<RowTile<F>, F::kMaxRows>(num_rows, kv, queries, keys, options, row, prefetcher,
                                       result);
    row += num_rows;
  }
}

template <class F>
void prepare_query(const KVView& kv, const float* q, const AttentionOptions& options,
                   std::int64_t row, const QueryRows& queries) {
  constexpr float kLog2E = 1.44269504f;
  const float scale =
      options.softcap > 0 ? options.scale / options.softcap : options.scale * kLog2E;
  F::prepare(kv, q, scale, row, queries);
}

template <class F>
void store_tokens(const KVView& kv, const KVRows& rows, std::int64_t num_tokens,
                  std::int64_t kv_head_begin, std::int64_t kv_head_end) {
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const std::int64_t block = rows.slots[t] / kv.block_size;
    const std::int64_t offset = rows.slots[t] % kv.block_size;
    for (std::int64_t head = kv_head_begin; head < kv_head_end; ++head) {
      const std::int64_t at = t * rows.stride + head * kv.head_dim;
      F::store(kv, rows.k + at, rows.v + at,
               {kv.tile(block, head, offset / kTileTokens), offset % kTileTokens, head,
                rows.open_groups, rows.first_position + t});
    }
  }
}

template <class F>
constexpr AttentionKernel attention_kernel() {
  return {&store_tokens<F>, &prepare_query<F>, &attend<F>, F::kRotateBack};
}

// In the order of KVFormat. kRows x kVectors sums must fit into registers beside the operands, and
// kRows x kCodeVectors integer sums beside as many in f32.
template <class S, int kRows, int kVectors, int kCodeVectors>
constexpr AttentionKernels attention_kernels() {
  return {
      {attention_kernel<FloatAttention<S, F32Weights<S>, kRows, kVectors>>(),
       attention_kernel<FloatAttention<S, BF16Pairs<S>, kRows, kVectors>>(),
       attention_kernel<QuantizedAttention<QuantizedKeys<S, Codes8<S>, kCodeVectors>,
                                           QuantizedValues<S, Codes8<S>, kRows, kCodeVectors>>>(),
       attention_kernel<QuantizedAttention<QuantizedKeys<S, Codes8<S>, kCodeVectors>,
                                           QuantizedValues<S, Codes4<S>, kRows, kCodeVectors>>>(),
       attention_kernel<QuantizedAttention<DimensionKeys<S, kCodeVectors>,
                                           QuantizedValues<S, Codes4<S>, kRows, kCodeVectors>>>()},
      &softmax::fold<S>,
      &softmax::finish};
}

}  // namespace
}  // namespace pellucid
