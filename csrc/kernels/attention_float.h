// Keys and values in f32 or bf16. What is multiplied with them is rounded to the same format, so
// that one instruction does both products; sums are f32.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "attention_products.h"
#include "float_weights.h"
#include "prepare_rows.h"

namespace pellucid {
namespace {

template <class S>
void round_to(float* p, typename S::F32 x) {
  S::store(p, x);
}
template <class S>
void round_to(std::uint16_t* p, typename S::F32 x) {
  S::store_bf16(p, x);
}

// kVectors is even.
template <class S, class Weights, int kRows_, int kVectors>
struct FloatAttention {
  using Input = typename Weights::Input;
  static constexpr int kMaxRows = kRows_;

  struct Probabilities {
    Input values[kMaxRows][kRangeTokens];
  };

  static void prepare(const KVView& kv, const float* q, std::int64_t row,
                      const QueryRows& queries) {
    Input* const values = static_cast<Input*>(queries.values) + row * kv.padded_dim;
    for (std::int64_t d = 0; d < kv.padded_dim; d += S::kLanes) {
      round_to<S>(values + d, load_padded<S>(q + d, kv.head_dim - d));
    }
  }

  // A token's k and v [D] into its tile.
  static void store(const KVView& kv, const float* k, const float* v, std::int64_t token,
                    std::uint8_t* tile) {
    for (std::int64_t d = 0; d < kv.head_dim; d += S::kLanes) {
      const std::int64_t num_dims = min(S::kLanes, kv.head_dim - d);
      Input rounded[S::kLanes];
      round_to<S>(rounded, load_padded<S>(k + d, num_dims));
      for (std::int64_t i = 0; i < num_dims; i += kCellInputs) {
        std::uint8_t* const step = tile + (d + i) / kCellInputs * kKeyStepBytes;
        __builtin_memcpy(step + token * kCellBytes, rounded + i, kCellBytes);
      }
      round_to<S>(rounded, load_padded<S>(v + d, num_dims));
      std::uint8_t* const step =
          tile + kv.value_offset + token / kCellInputs * value_step_bytes(kv);
      for (std::int64_t i = 0; i < num_dims; ++i) {
        __builtin_memcpy(step + (d + i) * kCellBytes + token % kCellInputs * sizeof(Input),
                         rounded + i, sizeof(Input));
      }
    }
  }

  // Steps of products that a block of rows takes with a tile of keys.
  static std::int64_t num_steps(const KVView& kv) {
    const std::int64_t num_vectors = kv.padded_dim / S::kLanes;
    return kTileTokens / kCellInputs * (num_vectors / kVectors + num_vectors % kVectors) +
           kv.padded_dim / kCellInputs * kTileTokens / (kVectors * S::kLanes);
  }

  // Scores [kRows][kRangeTokens] of the rows from `row` on.
  template <int kRows>
  static void scores(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                     std::int64_t row, Prefetcher& prefetcher, float* scores) {
    const std::int64_t num_keys = keys.num_tiles * kTileTokens;
    std::int64_t key = 0;
    for (; key + kVectors * S::kLanes <= num_keys; key += kVectors * S::kLanes) {
      score_tile<kRows, kVectors>(kv, queries, keys, row, key, prefetcher, scores);
    }
    for (; key < num_keys; key += S::kLanes) {
      score_tile<kRows, 1>(kv, queries, keys, row, key, prefetcher, scores);
    }
  }

  // `scores` holds probabilities [num_keys] by now.
  static void pack(const KVView&, const KeyRange& keys, std::int64_t, const float* scores,
                   std::int64_t row, Probabilities& packed) {
    for (std::int64_t key = 0; key < keys.num_tiles * kTileTokens; key += S::kLanes) {
      round_to<S>(packed.values[row] + key, S::load(scores + key));
    }
  }

  // Sums of values [kRows][padded_dim]. visible_ends[r] is the number of keys that a row sees.
  template <int kRows>
  static void values(const KVView& kv, const KeyRange& keys, const Probabilities& packed,
                     const std::int64_t* visible_ends, Prefetcher& prefetcher, float* sums) {
    std::int64_t d = 0;
    for (; d + kVectors * S::kLanes <= kv.padded_dim; d += kVectors * S::kLanes) {
      value_tile<kRows, kVectors>(kv, keys, packed, d, prefetcher, sums);
    }
    for (; d < kv.padded_dim; d += S::kLanes) {
      value_tile<kRows, 1>(kv, keys, packed, d, prefetcher, sums);
    }
    if (!keys.ends_with_queries) return;
    for (int r = 0; r < kRows; ++r) {
      for (d = 0; d < kv.padded_dim; d += S::kLanes) {
        add_last_tile(kv, keys, packed.values[r], visible_ends[r], d, prefetcher,
                      sums + r * kv.padded_dim);
      }
    }
  }

 private:
  static constexpr int kCellInputs = Weights::kFactorInputs;
  static constexpr int kCellBytes = kCellInputs * static_cast<int>(sizeof(Input));
  static constexpr std::int64_t kKeyStepBytes = kTileTokens * kCellBytes;

  static std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
  static std::int64_t value_step_bytes(const KVView& kv) { return kv.padded_dim * kCellBytes; }

  template <int kRows, int kTileVectors>
  static void score_tile(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                         std::int64_t row, std::int64_t key, Prefetcher& prefetcher,
                         float* scores) {
    const std::uint8_t* columns[kTileVectors];
    typename S::F32 sums[kRows][kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) {
      const std::int64_t column = key + v * S::kLanes;
      columns[v] = keys.tiles[column / kTileTokens] + column % kTileTokens * kCellBytes;
      for (int r = 0; r < kRows; ++r) sums[r][v] = S::zero();
    }
    const Input* const q = static_cast<const Input*>(queries.values) + row * kv.padded_dim;
    add_float_products<S, Weights, kRows, kTileVectors>(
        columns, kKeyStepBytes, kv.padded_dim / kCellInputs, q, kv.padded_dim, prefetcher, sums);
    for (int r = 0; r < kRows; ++r) {
      const typename S::F32 scale = S::broadcast(queries.scales[row + r]);
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(scores + r * kRangeTokens + key + v * S::kLanes, S::mul(sums[r][v], scale));
      }
    }
  }

  // Over the tiles whose keys all rows may see.
  template <int kRows, int kTileVectors>
  static void value_tile(const KVView& kv, const KeyRange& keys, const Probabilities& packed,
                         std::int64_t d, Prefetcher& prefetcher, float* result) {
    typename S::F32 sums[kRows][kTileVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) sums[r][v] = S::zero();
    }
    const std::int64_t num_whole_tiles = keys.num_tiles - (keys.ends_with_queries ? 1 : 0);
    for (std::int64_t t = 0; t < num_whole_tiles; ++t) {
      const std::uint8_t* columns[kTileVectors];
      for (int v = 0; v < kTileVectors; ++v) {
        columns[v] = keys.tiles[t] + kv.value_offset + (d + v * S::kLanes) * kCellBytes;
      }
      add_float_products<S, Weights, kRows, kTileVectors>(
          columns, value_step_bytes(kv), kTileTokens / kCellInputs,
          packed.values[0] + t * kTileTokens, kRangeTokens, prefetcher, sums);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(result + r * kv.padded_dim + d + v * S::kLanes, sums[r][v]);
      }
    }
  }

  // The tile in which the query stands, as far as it sees: what lies beyond may be the rests of
  // another request, infinities and all, or this request's own future.
  static void add_last_tile(const KVView& kv, const KeyRange& keys, const Input* probabilities,
                            std::int64_t visible_end, std::int64_t d, Prefetcher& prefetcher,
                            float* sums) {
    const std::int64_t first_key = (keys.num_tiles - 1) * kTileTokens;
    const std::int64_t num_steps = (visible_end - first_key) / kCellInputs;
    const Input* const p = probabilities + first_key;
    const std::uint8_t* const columns[1] = {keys.tiles[keys.num_tiles - 1] + kv.value_offset +
                                            d * kCellBytes};
    typename S::F32 sum[1][1] = {{S::load(sums + d)}};
    add_float_products<S, Weights, 1, 1>(columns, value_step_bytes(kv), num_steps, p, kRangeTokens,
                                         prefetcher, sum);
    if constexpr (kCellInputs == 2) {
      if ((visible_end - first_key) % kCellInputs != 0) {  // half of a pair
        const typename S::Pairs w = S::load_pairs(columns[0] + num_steps * value_step_bytes(kv));
        const typename S::Pairs pair = S::broadcast_pair(p + num_steps * kCellInputs);
        sum[0][0] = S::fma(S::low_bf16(w), S::low_bf16(pair), sum[0][0]);
      }
    }
    S::store(sums + d, sum[0][0]);
  }
};

}  // namespace
}  // namespace pellucid
