// Scores of keys in codes of 4 bits by dimension: 32 positions share a scale and a minimum of each
// dimension, so that outliers of keys, which are dimensions, cost the others nothing (KIVI, arXiv
// 2402.02750). A query reads its own group of positions in bf16.
//
//   score = sum of (q * scale) * code + sum of q * minimum
//
// The products q * scale become codes of 8 bits for each group of positions. Their unit is that of
// the largest product of q with the widest scales of the range, for 32 dimensions each.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "attention_products.h"
#include "dimension_codes.h"
#include "float_weights.h"
#include "int8_codes.h"
#include "softmax.h"
#include "tile_prefetcher.h"

namespace pellucid {
namespace {

template <class S, int kVectors>
struct DimensionKeys {
 private:
  static constexpr std::int64_t kCellInputs = 8;
  static constexpr std::int64_t kStepBytes = kTileTokens * kCodeCellBytes;
  static constexpr int kMaxDimGroups = kMaxHeadDim / kKVGroupDims;
  static constexpr int kKeys = kVectors * S::kLanes;  // of a tile of products
  static_assert(kOpenTokens % kKeys == 0 && (kKeys <= kTileTokens || kKeys % kTileTokens == 0));

 public:
  // Queries stay in f32: what they are rounded to depends on the keys.
  static void prepare(const KVView& kv, const float* q, float scale, std::int64_t row,
                      const QueryRows& queries) {
    float* const values = static_cast<float*>(queries.values) + row * kv.padded_dim;
    for (std::int64_t d = 0; d < kv.padded_dim; d += S::kLanes) {
      S::store(values + d, S::mul(load_padded<S>(q + d, kv.head_dim - d), S::broadcast(scale)));
    }
  }

  // Stores a token's k [D] beside the others of its group, which become codes with the last one.
  static void store(const KVView& kv, const float* k, const TokenPlace& place) {
    const OpenGroups& groups = *place.open_groups;
    const std::int64_t group = place.position / kOpenTokens;
    const std::int64_t offset = place.position % kOpenTokens;
    std::uint8_t* const keys = kv.open_group(groups.place(group), place.kv_head);
    if (place.position == groups.first_position && offset > 0 && !groups.is_in_slot(group)) {
      // What earlier steps stored is where a later group's keys will be.
      __builtin_memcpy(keys, kv.open_group(groups.slot_place(group), place.kv_head),
                       static_cast<std::size_t>(kOpenTiles * kv.open_tile_bytes));
    }
    std::uint8_t* const cells =
        keys + offset / kTileTokens * kv.open_tile_bytes + offset % kTileTokens * kPairBytes;
    for (std::int64_t d = 0; d < kv.padded_dim; d += S::kLanes) {
      std::uint16_t rounded[S::kLanes];
      S::store_bf16(rounded, load_padded<S>(k + d, kv.head_dim - d));
      for (std::int64_t i = 0; i < S::kLanes; i += 2) {
        __builtin_memcpy(cells + (d + i) / 2 * kPairStepBytes, rounded + i, kPairBytes);
      }
    }
    if (offset == kOpenTokens - 1) {
      dimension_codes::quantize(kv, keys, place.tile - kv.tile_bytes, place.tile);
    }
  }

  // Prefetch steps per tile of keys.
  static std::int64_t num_steps(const KVView& kv) {
    return kv.padded_dim / kCellInputs * kTileTokens / kKeys;
  }

  // Computes the scores [kRows][kRangeTokens] of the rows from `row` on.
  template <int kRows>
  static void scores(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                     std::int64_t row, TilePrefetcher& prefetcher, float* scores) {
    const float* const q = static_cast<const float*>(queries.values) + row * kv.padded_dim;
    const std::int64_t num_coded = keys.num_tiles - keys.num_open_tiles;
    if (num_coded > 0) {
      const RangeQueries<kRows> range(kv, q, keys, num_coded);
      for (std::int64_t t = 0; t < num_coded; t += kOpenTiles) {
        score_group<kRows>(kv, q, range, keys.tiles + t, prefetcher, scores + t * kTileTokens);
      }
    }
    if (keys.num_open_tiles > 0) {
      score_open_tiles<kRows>(kv, q, keys, scores + num_coded * kTileTokens);
    }
  }

 private:
  // Queries in units of their codes over a range.
  template <int kRows>
  struct RangeQueries {
    RangeQueries(const KVView& kv, const float* q, const KeyRange& keys, std::int64_t num_tiles) {
      for (std::int64_t d = 0, g = 0; d < kv.padded_dim; d += kKVGroupDims, ++g) {
        typename S::F32 widest[kGroupVectors];
        for (int v = 0; v < kGroupVectors; ++v) widest[v] = S::zero();
        for (std::int64_t t = 0; t < num_tiles; t += kOpenTiles) {
          const std::uint16_t* const scales = dimension_codes::factors(kv, keys.tiles[t]) + d;
          for (int v = 0; v < kGroupVectors; ++v) {
            widest[v] = S::max(S::load_bf16(scales + v * S::kLanes), widest[v]);
          }
        }
        for (int r = 0; r < kRows; ++r) {
          const float* const row = q + r * kv.padded_dim + d;
          typename S::I32 peak = S::zero_i32();
          for (int v = 0; v < kGroupVectors; ++v) {
            peak = S::max_abs_bits(peak, S::mul(S::load(row + v * S::kLanes), widest[v]));
          }
          const std::int32_t bits = S::reduce_max(peak);
          const bool is_number = bits >= kSmallestBits && bits < kInfinityBits;
          const float amax = float_of_bits(bits);
          units[r][g] =
              is_number ? amax / 127.0f : float_of_bits(bits < kSmallestBits ? 0 : kNaNBits);
          const typename S::F32 inverse = S::broadcast(is_number ? 127.0f / amax : 0.0f);
          for (int v = 0; v < kGroupVectors; ++v) {
            const typename S::F32 x = S::mul(S::load(row + v * S::kLanes), inverse);
            S::store(scaled[r] + d + v * S::kLanes, is_number ? x : S::zero());
          }
        }
      }
    }

    alignas(64) float scaled[kRows][kMaxHeadDim];  // times a scale: a code of 8 bits, not rounded
    float units[kRows][kMaxDimGroups];             // of the codes of 32 dimensions
  };
  static constexpr int kGroupVectors = kKVGroupDims / S::kLanes;

  // The codes of rows for one group of positions, and what its minimums add to their scores.
  template <int kRows>
  struct GroupQueries {
    GroupQueries(const KVView& kv, const float* q, const RangeQueries<kRows>& range,
                 const std::uint8_t* tile) {
      constexpr int kSumVectors = kTileTokens / S::kLanes;
      const std::uint16_t* const scales = dimension_codes::factors(kv, tile);
      const std::uint16_t* const minimums = dimension_codes::factors(kv, tile + kv.tile_bytes);
      typename S::F32 sums[kRows][kSumVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kSumVectors; ++v) sums[r][v] = S::zero();
      }
      for (std::int64_t d = 0; d < kv.padded_dim; d += kTileTokens) {
#pragma GCC unroll 4
        for (int v = 0; v < kSumVectors; ++v) {
          const std::int64_t at = d + v * S::kLanes;
          const typename S::F32 scale = S::load_bf16(scales + at);
          const typename S::F32 minimum = S::load_bf16(minimums + at);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            S::store_i8(codes[r] + at, S::round(S::mul(S::load(range.scaled[r] + at), scale)));
            sums[r][v] = S::fma(S::load(q + r * kv.padded_dim + at), minimum, sums[r][v]);
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        alignas(64) float lanes[kTileTokens];
        for (int v = 0; v < kSumVectors; ++v) S::store(lanes + v * S::kLanes, sums[r][v]);
        bases[r] = softmax::sum(softmax::load(lanes));
      }
    }

    alignas(64) std::int8_t codes[kRows][kMaxHeadDim];
    float bases[kRows];
  };

  template <int kRows>
  static void score_group(const KVView& kv, const float* q, const RangeQueries<kRows>& range,
                          const std::uint8_t* const* tiles, TilePrefetcher& prefetcher,
                          float* scores) {
    const GroupQueries<kRows> group(kv, q, range, tiles[0]);
    for (std::int64_t key = 0; key < kOpenTokens; key += kKeys) {
      const std::uint8_t* columns[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t column = key + v * S::kLanes;
        columns[v] = tiles[column / kTileTokens] + column % kTileTokens * kCodeCellBytes;
      }
      typename S::F32 totals[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) totals[r][v] = S::broadcast(group.bases[r]);
      }
      const std::int64_t num_groups = kv.padded_dim / kKVGroupDims;
      for (std::int64_t g = 0; g < num_groups; ++g) {
        typename S::NibbleSums sums[kRows][kVectors];
        for (int r = 0; r < kRows; ++r) {
          for (int v = 0; v < kVectors; ++v) sums[r][v] = S::zero_i32();
        }
        add_group_products<kRows>(columns, group.codes[0] + g * kKVGroupDims, prefetcher, sums);
        for (int v = 0; v < kVectors; ++v) {
          for (int r = 0; r < kRows; ++r) {
            totals[r][v] = S::fma(S::to_f32(S::nibble_total(sums[r][v])),
                                  S::broadcast(range.units[r][g]), totals[r][v]);
          }
          columns[v] += kKVGroupDims / kCellInputs * kStepBytes;
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          S::store(scores + r * kRangeTokens + key + v * S::kLanes, totals[r][v]);
        }
      }
    }
  }

  // Adds the products of 32 dimensions.
  template <int kRows>
  static inline __attribute__((always_inline)) void add_group_products(
      const std::uint8_t* const (&columns)[kVectors], const std::int8_t* codes,
      TilePrefetcher& prefetcher, typename S::NibbleSums (&sums)[kRows][kVectors]) {
#pragma GCC unroll 4
    for (int step = 0; step < kKVGroupDims / kCellInputs; ++step) {
      prefetcher.step();
      typename S::Quads w[kVectors][2];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const typename S::Quads both = S::load_quads(columns[v] + step * kStepBytes);
        w[v][0] = S::low_nibbles(both);
        w[v][1] = S::high_nibbles(both);
      }
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const typename S::Quads quad =
              S::broadcast_quad(codes + r * kMaxHeadDim + 8 * step + 4 * half);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) {
            sums[r][v] = S::add_nibble_products(sums[r][v], w[v][half], quad);
          }
        }
      }
    }
  }

  // Of the queries' own group, in bf16.
  template <int kRows>
  static void score_open_tiles(const KVView& kv, const float* q, const KeyRange& keys,
                               float* scores) {
    alignas(64) std::uint16_t rounded[kRows][kMaxHeadDim];
    for (int r = 0; r < kRows; ++r) {
      for (std::int64_t d = 0; d < kv.padded_dim; d += S::kLanes) {
        S::store_bf16(rounded[r] + d, S::load(q + r * kv.padded_dim + d));
      }
    }
    for (std::int64_t key = 0; key < keys.num_open_tiles * kTileTokens; key += S::kLanes) {
      const std::uint8_t* const columns[1] = {keys.open_tiles +
                                              key / kTileTokens * kv.open_tile_bytes +
                                              key % kTileTokens * kPairBytes};
      typename S::F32 sums[kRows][1];
      for (int r = 0; r < kRows; ++r) sums[r][0] = S::zero();
      add_float_products<S, BF16Pairs<S>, kRows, 1>(
          columns, kPairStepBytes, kv.padded_dim / 2, rounded[0], kMaxHeadDim, [](std::int64_t) {},
          sums);
      for (int r = 0; r < kRows; ++r) S::store(scores + r * kRangeTokens + key, sums[r][0]);
    }
  }
};

}  // namespace
}  // namespace pellucid
