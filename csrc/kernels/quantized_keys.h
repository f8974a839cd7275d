// Scores of keys in codes of 8 bits with queries in codes of 8 bits. Both are rotated, so
// their products are those of keys and queries. Products are summed exactly within a group of
// dimensions, and groups in f32. A lane of scores is a key, so the key's scale applies to the lane.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "attention_products.h"
#include "hadamard.h"
#include "int8_codes.h"
#include "kv_cells.h"
#include "quantized_tile.h"
#include "tile_prefetcher.h"

namespace pellucid {
namespace {

// Codes is Codes8.
template <class S, class Codes, int kVectors>
struct QuantizedKeys {
 private:
  static constexpr int kBits = Codes::kBits;
  static constexpr int kCellInputs = 4 * Codes::kQuads;
  static constexpr std::int64_t kStepBytes = kTileTokens * kCodeCellBytes;
  static constexpr std::int64_t kGroupSteps = kKVGroupDims / kCellInputs;

 public:
  // Each group of a query has a scale of its own, as the keys' groups have.
  static void prepare(const KVView& kv, const float* q, float scale, std::int64_t row,
                      const QueryRows& queries) {
    std::int8_t* const codes = static_cast<std::int8_t*>(queries.values) + row * kv.padded_dim;
    alignas(64) float rotated[kMaxHeadDim];
    hadamard::rotate_groups(q, kv.head_dim, kv.padded_dim, hadamard::kOut, rotated);
    for (std::int64_t g = 0; g < kv.key_groups; ++g) {
      const std::int64_t first = g * kKVGroupDims;
      float& group_scale = queries.scales[row * kv.key_groups + g];
      const std::int32_t sum = quantize_group<S>(rotated + first, kKVGroupDims, kKVGroupDims,
                                                 codes + first, &group_scale);
      group_scale *= scale;
      queries.starts[row * kv.key_groups + g] = -Codes::kZeroPoint * sum;
    }
  }

  // Stores a token's k [D] in its tile.
  static void store(const KVView& kv, const float* k, const TokenPlace& place) {
    std::uint8_t* const tile = place.tile;
    const std::int64_t token = place.token;
    alignas(64) float rotated[kMaxHeadDim];
    hadamard::rotate_groups(k, kv.head_dim, kv.padded_dim, hadamard::kIn, rotated);
    quantize_vector<S, kBits>(rotated, kv.padded_dim, kv.padded_dim, kKVGroupDims,
                              key_scales(kv, tile) + token, [&](std::int64_t d, int code) {
                                put_code<kBits>(
                                    tile + d / kCellInputs * kStepBytes + token * kCodeCellBytes,
                                    d % kCellInputs, code + (1 << (kBits - 1)));
                              });
  }

  // Prefetch steps per tile of keys.
  static std::int64_t num_steps(const KVView& kv) {
    return kv.padded_dim / kCellInputs * kTileTokens / (kVectors * S::kLanes);
  }

  // Computes the scores [kRows][kRangeTokens] of the rows from `row` on.
  template <int kRows>
  static void scores(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                     std::int64_t row, TilePrefetcher& prefetcher, float* scores) {
    const std::int64_t num_keys = keys.num_tiles * kTileTokens;
    const LocalQueries<std::int8_t, kRows> q(queries, kv.padded_dim, row, kv.key_groups);
    const std::int32_t* const starts = queries.starts + row * kv.key_groups;
    std::int64_t key = 0;
    for (; key + kVectors * S::kLanes <= num_keys; key += kVectors * S::kLanes) {
      score_tile<kRows, kVectors>(kv, q, starts, keys, key, prefetcher, scores);
    }
    for (; key < num_keys; key += S::kLanes) {
      score_tile<kRows, 1>(kv, q, starts, keys, key, prefetcher, scores);
    }
  }

 private:
  template <int kRows, int kTileVectors>
  static void score_tile(const KVView& kv, const LocalQueries<std::int8_t, kRows>& q,
                         const std::int32_t* starts, const KeyRange& keys, std::int64_t key,
                         TilePrefetcher& prefetcher, float* scores) {
    const std::uint8_t* columns[kTileVectors];
    const std::uint16_t* scales[kTileVectors];
    typename S::F32 totals[kRows][kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) {
      const std::int64_t column = key + v * S::kLanes;
      const std::uint8_t* const tile = keys.tiles[column / kTileTokens];
      columns[v] = tile + column % kTileTokens * kCodeCellBytes;
      scales[v] = key_scales(kv, tile) + column % kTileTokens;
      for (int r = 0; r < kRows; ++r) totals[r][v] = S::zero();
    }
    const std::int8_t* codes = q.values[0];
    for (std::int64_t g = 0; g < kv.key_groups; ++g) {
      typename S::I32 sums[kRows][kTileVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kTileVectors; ++v) {
          sums[r][v] = S::broadcast_i32(starts[r * kv.key_groups + g]);
        }
      }
      add_code_products<S, Codes, kRows, kTileVectors>(columns, kStepBytes, kGroupSteps, codes,
                                                       kMaxHeadDim, prefetcher, sums);
      for (int v = 0; v < kTileVectors; ++v) {
        const typename S::F32 scale = S::load_bf16(scales[v] + g * kTileTokens);
        for (int r = 0; r < kRows; ++r) {
          const typename S::F32 both = S::mul(scale, S::broadcast(q.scales[r * kv.key_groups + g]));
          totals[r][v] = S::fma(S::to_f32(sums[r][v]), both, totals[r][v]);
        }
        columns[v] += kGroupSteps * kStepBytes;
      }
      codes += kKVGroupDims;
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(scores + r * kRangeTokens + key + v * S::kLanes, totals[r][v]);
      }
    }
  }
};

}  // namespace
}  // namespace pellucid
