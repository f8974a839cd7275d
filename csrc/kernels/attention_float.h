// Attention over keys and values in f32 or bf16. Queries and probabilities are rounded to the same
// format, the operands of one dot product instruction; sums are f32.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "attention_products.h"
#include "float_weights.h"
#include "int8_codes.h"
#include "softmax.h"

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
  static constexpr void (*kRotateBack)(std::int64_t, float*) = nullptr;

  static void prepare(const KVView& kv, const float* q, float scale, std::int64_t row,
                      const QueryRows& queries) {
    queries.scales[row] = scale;
    Input* const values = static_cast<Input*>(queries.values) + row * kv.padded_dim;
    for (std::int64_t d = 0; d < kv.padded_dim; d += S::kLanes) {
      round_to<S>(values + d, load_padded<S>(q + d, kv.head_dim - d));
    }
  }

  // Stores a token's k and v [D] in its tile.
  static void store(const KVView& kv, const float* k, const float* v, const TokenPlace& place) {
    std::uint8_t* const tile = place.tile;
    const std::int64_t token = place.token;
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

  // Prefetch steps of a block of rows per tile of keys, for any number of rows.
  static std::int64_t num_steps(const KVView& kv, std::int64_t) {
    const std::int64_t num_vectors = kv.padded_dim / S::kLanes;
    return kTileTokens / kCellInputs * (num_vectors / kVectors + num_vectors % kVectors) +
           kv.padded_dim / kCellInputs * kTileTokens / (kVectors * S::kLanes);
  }

  // Computes the scores [kRows][kRangeTokens] of the rows from `row` on.
  template <int kRows>
  static void scores(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                     std::int64_t row, TilePrefetcher& prefetcher, float* scores) {
    const std::int64_t num_keys = keys.num_tiles * kTileTokens;
    const LocalQueries<Input, kRows> q(queries, kv.padded_dim, row, 1);
    std::int64_t key = 0;
    for (; key + kVectors * S::kLanes <= num_keys; key += kVectors * S::kLanes) {
      score_tile<kRows, kVectors>(kv, q, keys, key, prefetcher, scores);
    }
    for (; key < num_keys; key += S::kLanes) {
      score_tile<kRows, 1>(kv, q, keys, key, prefetcher, scores);
    }
  }

  // Sums the probabilities, 2^(score - max), and the weighted values. `scores`
  // [kRows][kRangeTokens]; visible_ends[r] is the number of keys that a row sees.
  template <int kRows>
  static void values(const KVView& kv, const KeyRange& keys, const float* scores,
                     const std::int64_t* visible_ends, TilePrefetcher& prefetcher,
                     const Partials& result) {
    Probabilities<kRows> probabilities(scores, result.max);
    for (int r = 0; r < kRows; ++r) probabilities.make(r, 0);
    std::int64_t d = 0;
    for (; d + kVectors * S::kLanes <= kv.padded_dim; d += kVectors * S::kLanes) {
      value_tile<kRows, kVectors>(kv, keys, d, probabilities, prefetcher, result.values);
    }
    for (; d < kv.padded_dim; d += S::kLanes) {
      value_tile<kRows, 1>(kv, keys, d, probabilities, prefetcher, result.values);
    }
    for (int r = 0; r < kRows; ++r)
      result.total[r] = softmax::sum(softmax::load(probabilities.totals[r]));
    if (keys.ends_with_queries) {
      add_last_tile(kv, keys, probabilities.rounded[0], visible_ends, kRows, result.values);
    }
  }

 private:
  static constexpr int kCellInputs = Weights::kFactorInputs;
  static constexpr int kCellBytes = kCellInputs * static_cast<int>(sizeof(Input));
  static constexpr std::int64_t kKeyStepBytes = kTileTokens * kCellBytes;
  static constexpr int kTileSteps = kTileTokens / kCellInputs;
  static_assert(kMaxRows <= kTileSteps, "a row's probabilities are made at each step of a tile");

  static std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
  static std::int64_t value_step_bytes(const KVView& kv) { return kv.padded_dim * kCellBytes; }

  // The probabilities of a range, computed from scores one tile of a row at a time.
  template <int kRows>
  struct Probabilities {
    Probabilities(const float* scores, const float* max) : scores(scores), max(max) {}

    inline __attribute__((always_inline)) void make(std::int64_t row, std::int64_t tile) {
      const std::int64_t key = tile * kTileTokens;
      for (int i = 0; i < kTileTokens; i += S::kLanes) {
        const typename S::F32 exact = softmax::exp2_of_negative<S>(
            S::sub(S::load(scores + row * kRangeTokens + key + i), S::broadcast(max[row])));
        S::store(totals[row] + i, S::add(S::load(totals[row] + i), exact));
        round_to<S>(rounded[row] + key + i, exact);
      }
    }

    const float* const scores;  // [kRows][kRangeTokens]
    const float* const max;     // [kRows]
    alignas(64) float totals[kRows][kTileTokens] = {};
    alignas(64) Input rounded[kRows][kRangeTokens];
  };

  template <int kRows, int kTileVectors>
  static void score_tile(const KVView& kv, const LocalQueries<Input, kRows>& q,
                         const KeyRange& keys, std::int64_t key, TilePrefetcher& prefetcher,
                         float* scores) {
    const std::uint8_t* columns[kTileVectors];
    typename S::F32 sums[kRows][kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) {
      const std::int64_t column = key + v * S::kLanes;
      columns[v] = keys.tiles[column / kTileTokens] + column % kTileTokens * kCellBytes;
      for (int r = 0; r < kRows; ++r) sums[r][v] = S::zero();
    }
    add_float_products<S, Weights, kRows, kTileVectors>(
        columns, kKeyStepBytes, kv.padded_dim / kCellInputs, q.values[0], kMaxHeadDim,
        [&](std::int64_t) { prefetcher.step(); }, sums);
    for (int r = 0; r < kRows; ++r) {
      const typename S::F32 scale = S::broadcast(q.scales[r]);
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(scores + r * kRangeTokens + key + v * S::kLanes, S::mul(sums[r][v], scale));
      }
    }
  }

  // Sums over the tiles whose keys all rows may see. With the first dimensions it also computes the
  // probabilities, one tile ahead of their products.
  template <int kRows, int kTileVectors>
  static void value_tile(const KVView& kv, const KeyRange& keys, std::int64_t d,
                         Probabilities<kRows>& probabilities, TilePrefetcher& prefetcher,
                         float* result) {
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
      const std::int64_t num_to_make = d == 0 && t + 1 < keys.num_tiles ? kRows : 0;
      add_float_products<S, Weights, kRows, kTileVectors>(
          columns, value_step_bytes(kv), kTileSteps, probabilities.rounded[0] + t * kTileTokens,
          kRangeTokens,
          [&](std::int64_t step) {
            prefetcher.step();
            if (step < num_to_make) probabilities.make(step, t + 1);
          },
          sums);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(result + r * kv.padded_dim + d + v * S::kLanes, sums[r][v]);
      }
    }
  }

  // Sums the rows of one token over the tile that contains the token, up to the token. Keys beyond
  // it may be leftovers of another request, infinities included, or later positions of this
  // request.
  struct LastTile {
    template <int kRows>
    static void run(const KVView& kv, const std::uint8_t* values, std::int64_t num_keys,
                    const Input* probabilities, float* sums) {
      std::int64_t d = 0;
      for (; d + kVectors * S::kLanes <= kv.padded_dim; d += kVectors * S::kLanes) {
        add<kRows, kVectors>(kv, values + d * kCellBytes, num_keys, probabilities, sums + d);
      }
      for (; d < kv.padded_dim; d += S::kLanes) {
        add<kRows, 1>(kv, values + d * kCellBytes, num_keys, probabilities, sums + d);
      }
    }

   private:
    template <int kRows, int kTileVectors>
    static void add(const KVView& kv, const std::uint8_t* values, std::int64_t num_keys,
                    const Input* probabilities, float* result) {
      const std::uint8_t* columns[kTileVectors];
      typename S::F32 sums[kRows][kTileVectors];
      for (int v = 0; v < kTileVectors; ++v) {
        columns[v] = values + v * S::kLanes * kCellBytes;
        for (int r = 0; r < kRows; ++r) {
          sums[r][v] = S::load(result + r * kv.padded_dim + v * S::kLanes);
        }
      }
      const std::int64_t num_steps = num_keys / kCellInputs;
      add_float_products<S, Weights, kRows, kTileVectors>(
          columns, value_step_bytes(kv), num_steps, probabilities, kRangeTokens,
          [](std::int64_t) {}, sums);
      if constexpr (kCellInputs == 2) {
        if (num_keys % kCellInputs != 0) {  // half of a pair
          const std::int64_t at = num_steps * value_step_bytes(kv);
          for (int r = 0; r < kRows; ++r) {
            const Input* const pair = probabilities + r * kRangeTokens + num_steps * kCellInputs;
            const typename S::F32 p = S::low_bf16(S::broadcast_pair(pair));
            for (int v = 0; v < kTileVectors; ++v) {
              const typename S::F32 w = S::low_bf16(S::load_pairs(columns[v] + at));
              sums[r][v] = S::fma(w, p, sums[r][v]);
            }
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kTileVectors; ++v) {
          S::store(result + r * kv.padded_dim + v * S::kLanes, sums[r][v]);
        }
      }
    }
  };

  static void add_last_tile(const KVView& kv, const KeyRange& keys, const Input* probabilities,
                            const std::int64_t* visible_ends, std::int64_t num_rows, float* sums) {
    const std::int64_t first_key = (keys.num_tiles - 1) * kTileTokens;
    for (std::int64_t row = 0, end = 0; row < num_rows; row = end) {
      while (end < num_rows && visible_ends[end] == visible_ends[row]) ++end;
      with_rows<LastTile, kMaxRows>(end - row, kv, keys.tiles[keys.num_tiles - 1] + kv.value_offset,
                                    visible_ends[row] - first_key,
                                    probabilities + row * kRangeTokens + first_key,
                                    sums + row * kv.padded_dim);
    }
  }
};

}  // namespace
}  // namespace pellucid
