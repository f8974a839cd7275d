// Sums of values in codes of 8 or 4 bits with probabilities in codes of 8 bits, exact within 16
// tokens and in f32 beyond. A sum of values runs over tokens, each with a scale of its own: the
// scale is multiplied into the token's probability before the probabilities are quantized, 16 at a
// time.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "hadamard.h"
#include "kv_cells.h"
#include "probability_codes.h"
#include "quantized_tile.h"
#include "softmax.h"
#include "tile_prefetcher.h"

namespace pellucid {
namespace {

// Codes is Codes8, whose heads have one scale, or Codes4; kVectors * S::kLanes divides
// kKVGroupDims.
template <class S, class Codes, int kMaxRows, int kVectors>
struct QuantizedValues {
 private:
  static constexpr int kBits = Codes::kBits;
  static constexpr int kMaxGroups = kBits == 8 ? 1 : kMaxHeadDim / kKVGroupDims;
  static constexpr int kCellInputs = 4 * Codes::kQuads;
  // The offset of stored codes: add_value_products().
  static constexpr int kValueZero = kBits == 8 ? 0 : 8;
  static constexpr int kTileQuads = kTileTokens / 4;
  static_assert(kKVGroupDims % (kVectors * S::kLanes) == 0, "a vector's dimensions share scales");

 public:
  static constexpr int kRowsAtOnce = kMaxRows;
  static constexpr bool kAreRotated = kBits == 4;

  // One for each group of dimensions, because the scales of their values differ.
  struct Probabilities {
    ProbabilityCodes groups[kMaxRows][kMaxGroups];
  };

  // Stores a token's v [D] in its tile.
  static void store(const KVView& kv, const float* v, std::int64_t token, std::uint8_t* tile) {
    std::uint8_t* const values = tile + kv.value_offset;
    alignas(64) float rotated[kBits == 4 ? kMaxHeadDim : 1];
    std::int64_t size = kv.head_dim;
    if constexpr (kBits == 4) {
      hadamard::rotate_groups(v, size, kv.padded_dim, hadamard::kIn, rotated);
      v = rotated;
      size = kv.padded_dim;
    }
    quantize_vector<S, kBits>(
        v, size, kv.padded_dim, group_dims(kv), value_scales(kv, tile) + token,
        [&](std::int64_t d, int code) {
          put_code<kBits>(values + token / kCellInputs * step_bytes(kv) + d * kCodeCellBytes,
                          token % kCellInputs, code + kValueZero);
        });
  }

  static void rotate_back(std::int64_t padded_dim, float* values) {
    hadamard::rotate_groups(values, padded_dim, padded_dim, hadamard::kOut, values);
  }

  // Prefetch steps of a block of rows per tile of keys.
  static std::int64_t num_steps(const KVView& kv, std::int64_t num_rows) {
    return kTileQuads * (kv.padded_dim / (kVectors * S::kLanes)) + num_rows;
  }

  // Sums the probabilities, 2^(score - max), and the weighted values. Replaces `scores`
  // [kRows][kRangeTokens] by the probabilities. visible_ends[r] is the number of keys that a row
  // sees, which never falls from row to row.
  template <int kRows>
  static void values(const KVView& kv, const KeyRange& keys, float* scores,
                     const std::int64_t* visible_ends, TilePrefetcher& prefetcher,
                     const Partials& result) {
    const std::int64_t num_keys = keys.num_tiles * kTileTokens;
    const std::int64_t num_strips = (keys.num_tiles + kStripTiles - 1) / kStripTiles;
    const std::int64_t num_codes = num_strips * kStripTiles * kTileTokens;
    alignas(64) float scales[kMaxGroups][kRangeTokens];
    load_value_scales(kv, keys, num_codes, scales);
    Probabilities packed;
    for (int r = kRows - 1; r >= 0; --r) {
      float* const row = scores + r * kRangeTokens;
      result.total[r] = softmax::exponentiate<S>(keys.num_tiles, result.max[r], prefetcher, row);
      for (std::int64_t i = num_keys; i < num_codes; ++i) row[i] = 0.0f;
      for (std::int64_t g = 0; g < kv.value_groups; ++g) {
        // Scales of keys that the query does not see may be leftovers of another request,
        // infinities included. The rows that follow in this loop see no more keys than this row.
        if (keys.ends_with_queries) {
          for (std::int64_t i = visible_ends[r]; i < num_keys; ++i) scales[g][i] = 0.0f;
        }
        quantize_probabilities<kValueZero != 0>(num_strips, row, scales[g], packed.groups[r][g]);
      }
    }
    for (std::int64_t d = 0; d < kv.padded_dim; d += kVectors * S::kLanes) {
      value_tile<kRows>(kv, keys, packed, d, prefetcher, result.values);
    }
  }

 private:
  static std::int64_t group_dims(const KVView& kv) {
    return kBits == 8 ? kv.padded_dim : kKVGroupDims;
  }
  static std::int64_t step_bytes(const KVView& kv) { return kv.padded_dim * kCodeCellBytes; }

  // Scales of a range's values in f32, zeros up to `num_codes`.
  static void load_value_scales(const KVView& kv, const KeyRange& keys, std::int64_t num_codes,
                                float (&scales)[kMaxGroups][kRangeTokens]) {
    for (std::int64_t g = 0; g < kv.value_groups; ++g) {
      for (std::int64_t t = 0; t < keys.num_tiles; ++t) {
        const std::uint16_t* const stored = value_scales(kv, keys.tiles[t]) + g * kTileTokens;
        for (std::int64_t i = 0; i < kTileTokens; i += S::kLanes) {
          S::store(scales[g] + t * kTileTokens + i, S::load_bf16(stored + i));
        }
      }
      for (std::int64_t i = keys.num_tiles * kTileTokens; i < num_codes; ++i) scales[g][i] = 0.0f;
    }
  }

  template <int kRows>
  static void value_tile(const KVView& kv, const KeyRange& keys, const Probabilities& packed,
                         std::int64_t d, TilePrefetcher& prefetcher, float* result) {
    const std::int64_t g = d / group_dims(kv);
    typename S::F32 totals[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) totals[r][v] = S::zero();
    }
    for (std::int64_t strip = 0; strip < keys.num_tiles; strip += kStripTiles) {
      const std::int64_t rest = keys.num_tiles - strip;
      const std::int64_t num_tiles = rest < kStripTiles ? rest : kStripTiles;
#pragma GCC unroll 4
      for (int quad = 0; quad < kTileQuads; ++quad) {
        typename S::I32 sums[kRows][kVectors];
        for (int r = 0; r < kRows; ++r) {
          std::int32_t start = 0;
          if constexpr (kValueZero != 0) {
            start = static_cast<std::int32_t>(
                -kValueZero *
                std::int64_t{packed.groups[r][g].sums[strip / kStripTiles][4 * quad]});
          }
          for (int v = 0; v < kVectors; ++v) sums[r][v] = S::broadcast_i32(start);
        }
        for (std::int64_t t = strip; t < strip + num_tiles; ++t) {
          prefetcher.step();
          add_value_products<kRows>(keys.tiles[t] + kv.value_offset + d * kCodeCellBytes,
                                    step_bytes(kv), quad,
                                    packed.groups[0][g].codes + t * kTileTokens + quad * 4, sums);
        }
        for (int r = 0; r < kRows; ++r) {
          const typename S::F32 scale =
              S::broadcast(packed.groups[r][g].scales[strip / kStripTiles][4 * quad]);
          for (int v = 0; v < kVectors; ++v) {
            totals[r][v] = S::fma(S::to_f32(sums[r][v]), scale, totals[r][v]);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        S::store(result + r * kv.padded_dim + d + v * S::kLanes, totals[r][v]);
      }
    }
  }

  // Products with four tokens of a tile, the quad'th four.
  template <int kRows>
  static inline __attribute__((always_inline)) void add_value_products(
      const std::uint8_t* values, std::int64_t step_bytes, int quad, const std::int8_t* codes,
      typename S::I32 (&sums)[kRows][kVectors]) {
    constexpr std::int64_t kCodesStride = kMaxGroups * std::int64_t{sizeof(ProbabilityCodes)};
    typename S::Quads w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const std::uint8_t* const cells = values + v * S::kLanes * kCodeCellBytes;
      if constexpr (kBits == 8) {
        w[v] = S::load_quads(cells + quad * step_bytes);
      } else {
        const typename S::Quads both = S::load_quads(cells + quad / 2 * step_bytes);
        w[v] = quad % 2 == 0 ? S::low_nibbles(both) : S::high_nibbles(both);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename S::Quads p = S::broadcast_quad(codes + r * kCodesStride);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        // One operand may have any sign, the other is never negative: with 8 bits the
        // probabilities, because scales of values are positive; with 4 bits the values.
        sums[r][v] = kBits == 8 ? S::template dot<8>(sums[r][v], p, w[v])
                                : S::template dot<4>(sums[r][v], w[v], p);
      }
    }
  }
};

}  // namespace
}  // namespace pellucid
