// Attention over keys and values in codes of 8 or 4 bits. Queries and probabilities become codes of
// 8 bits. Products are summed exactly within a group, and groups in f32.
//
// A lane of scores is a key, so the key's scale applies to the lane. A sum of values runs over
// tokens, each with a scale of its own: the scale is multiplied into the token's probability before
// the probabilities are quantized, 16 at a time.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "attention_products.h"
#include "int8_codes.h"
#include "kv_quantizer.h"
#include "probability_codes.h"
#include "quantized_tile.h"
#include "softmax.h"
#include "tile_prefetcher.h"

namespace pellucid {
namespace {

// Codes is Codes8 or Codes4; kVectors * S::kLanes divides kInt4GroupDims.
template <class S, class Codes, int kRows_, int kVectors>
struct QuantizedAttention {
  static constexpr int kMaxRows = kRows_;

 private:
  static constexpr int kBits = Codes::kBits;
  static constexpr int kMaxGroups = kBits == 8 ? 1 : kMaxHeadDim / kInt4GroupDims;
  static constexpr int kCellInputs = 4 * Codes::kQuads;
  static constexpr int kCellBytes = 4;
  // The offset of stored codes of values: add_value_products().
  static constexpr int kValueZero = kBits == 8 ? 0 : 8;
  static constexpr std::int64_t kKeyStepBytes = kTileTokens * kCellBytes;
  static constexpr int kTileQuads = kTileTokens / 4;
  static_assert(kInt4GroupDims % (kVectors * S::kLanes) == 0, "a vector's dimensions share scales");

 public:
  // One for each group of dimensions, because the scales of their values differ.
  struct Probabilities {
    ProbabilityCodes groups[kMaxRows][kMaxGroups];
  };

  static void prepare(const KVView& kv, const float* q, std::int64_t row,
                      const QueryRows& queries) {
    std::int8_t* const codes = static_cast<std::int8_t*>(queries.values) + row * kv.padded_dim;
    float scale;
    quantize_group<S>(q, kv.head_dim, kv.padded_dim, codes, &scale);
    queries.scales[row] *= scale;
    const std::int64_t dims = group_dims(kv);
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      std::int32_t sum = 0;
      for (std::int64_t d = 0; d < dims; ++d) sum += codes[g * dims + d];
      queries.starts[row * kv.num_groups + g] = -Codes::kZeroPoint * sum;
    }
  }

  // Stores a token's k and v [D] in its tile.
  static void store(const KVView& kv, const float* k, const float* v, std::int64_t token,
                    std::uint8_t* tile) {
    store_vector(kv, k, token, key_scales(kv, tile), [&](std::int64_t d, int code) {
      put(tile + d / kCellInputs * kKeyStepBytes + token * kCellBytes, d % kCellInputs,
          code + (1 << (kBits - 1)));
    });
    std::uint8_t* const values = tile + kv.value_offset;
    store_vector(kv, v, token, value_scales(kv, tile), [&](std::int64_t d, int code) {
      put(values + token / kCellInputs * value_step_bytes(kv) + d * kCellBytes, token % kCellInputs,
          code + kValueZero);
    });
  }

  // Prefetch steps of a block of rows per tile of keys.
  static std::int64_t num_steps(const KVView& kv, std::int64_t num_rows) {
    const std::int64_t num_vectors = kv.padded_dim / S::kLanes;
    return kTileQuads * (num_vectors / kVectors + num_vectors % kVectors) + num_rows +
           kv.padded_dim / kCellInputs * kTileTokens / (kVectors * S::kLanes);
  }

  // Computes the scores [kRows][kRangeTokens] of the rows from `row` on.
  template <int kRows>
  static void scores(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                     std::int64_t row, TilePrefetcher& prefetcher, float* scores) {
    const std::int64_t num_keys = keys.num_tiles * kTileTokens;
    const LocalQueries<std::int8_t, kRows> q(queries, kv.padded_dim, row);
    const std::int32_t* const starts = queries.starts + row * kv.num_groups;
    std::int64_t key = 0;
    for (; key + kVectors * S::kLanes <= num_keys; key += kVectors * S::kLanes) {
      score_tile<kRows, kVectors>(kv, q, starts, keys, key, prefetcher, scores);
    }
    for (; key < num_keys; key += S::kLanes) {
      score_tile<kRows, 1>(kv, q, starts, keys, key, prefetcher, scores);
    }
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
      for (std::int64_t g = 0; g < kv.num_groups; ++g) {
        // Scales of keys that the query does not see may be leftovers of another request,
        // infinities included. The rows that follow in this loop see no more keys than this row.
        if (keys.ends_with_queries) {
          for (std::int64_t i = visible_ends[r]; i < num_keys; ++i) scales[g][i] = 0.0f;
        }
        quantize_probabilities<kValueZero != 0>(num_strips, row, scales[g], packed.groups[r][g]);
      }
    }
    std::int64_t d = 0;
    for (; d + kVectors * S::kLanes <= kv.padded_dim; d += kVectors * S::kLanes) {
      value_tile<kRows, kVectors>(kv, keys, packed, d, prefetcher, result.values);
    }
    for (; d < kv.padded_dim; d += S::kLanes) {
      value_tile<kRows, 1>(kv, keys, packed, d, prefetcher, result.values);
    }
  }

 private:
  static std::int64_t group_dims(const KVView& kv) { return kv.padded_dim / kv.num_groups; }
  static std::int64_t value_step_bytes(const KVView& kv) { return kv.padded_dim * kCellBytes; }

  // bf16 [groups][16 tokens].
  static const std::uint16_t* key_scales(const KVView& kv, const std::uint8_t* tile) {
    return reinterpret_cast<const std::uint16_t*>(tile + kv.scale_offset);
  }
  static const std::uint16_t* value_scales(const KVView& kv, const std::uint8_t* tile) {
    return key_scales(kv, tile) + kv.num_groups * kTileTokens;
  }
  static std::uint16_t* key_scales(const KVView& kv, std::uint8_t* tile) {
    return reinterpret_cast<std::uint16_t*>(tile + kv.scale_offset);
  }
  static std::uint16_t* value_scales(const KVView& kv, std::uint8_t* tile) {
    return key_scales(kv, tile) + kv.num_groups * kTileTokens;
  }

  // Scales of a range's values in f32, zeros up to `num_codes`.
  static void load_value_scales(const KVView& kv, const KeyRange& keys, std::int64_t num_codes,
                                float (&scales)[kMaxGroups][kRangeTokens]) {
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      for (std::int64_t t = 0; t < keys.num_tiles; ++t) {
        const std::uint16_t* const stored = value_scales(kv, keys.tiles[t]) + g * kTileTokens;
        for (std::int64_t i = 0; i < kTileTokens; i += S::kLanes) {
          S::store(scales[g] + t * kTileTokens + i, S::load_bf16(stored + i));
        }
      }
      for (std::int64_t i = keys.num_tiles * kTileTokens; i < num_codes; ++i) scales[g][i] = 0.0f;
    }
  }

  // Calls put_code(d, code) for every dimension and sets the token's scales.
  template <class F>
  static void store_vector(const KVView& kv, const float* x, std::int64_t token,
                           std::uint16_t* scales, F put_code) {
    const std::int64_t dims = group_dims(kv);
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      const std::int64_t first = g * dims;
      const std::int64_t rest = kv.head_dim - first;
      std::int8_t codes[kMaxHeadDim];
      scales[g * kTileTokens + token] =
          KVQuantizer<S, kBits>::quantize(x + first, rest < dims ? rest : dims, dims, codes);
      for (std::int64_t d = 0; d < dims; ++d) put_code(first + d, codes[d]);
    }
  }

  static void put(std::uint8_t* cell, std::int64_t input, int code) {
    std::uint8_t& byte = cell[input % 4];
    if constexpr (kBits == 8) {
      byte = static_cast<std::uint8_t>(code);
    } else {
      const int shift = input < 4 ? 0 : 4;
      byte = static_cast<std::uint8_t>((byte & (0xf0 >> shift)) | code << shift);
    }
  }

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
      columns[v] = tile + column % kTileTokens * kCellBytes;
      scales[v] = key_scales(kv, tile) + column % kTileTokens;
      for (int r = 0; r < kRows; ++r) totals[r][v] = S::zero();
    }
    const std::int64_t num_steps = group_dims(kv) / kCellInputs;
    const std::int8_t* codes = q.values[0];
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      typename S::I32 sums[kRows][kTileVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kTileVectors; ++v) {
          sums[r][v] = S::broadcast_i32(starts[r * kv.num_groups + g]);
        }
      }
      add_code_products<S, Codes, kRows, kTileVectors>(columns, kKeyStepBytes, num_steps, codes,
                                                       kMaxHeadDim, prefetcher, sums);
      for (int v = 0; v < kTileVectors; ++v) {
        const typename S::F32 scale = S::load_bf16(scales[v] + g * kTileTokens);
        for (int r = 0; r < kRows; ++r) {
          totals[r][v] = S::fma(S::to_f32(sums[r][v]), scale, totals[r][v]);
        }
        columns[v] += num_steps * kKeyStepBytes;
      }
      codes += group_dims(kv);
    }
    for (int r = 0; r < kRows; ++r) {
      const typename S::F32 scale = S::broadcast(q.scales[r]);
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(scores + r * kRangeTokens + key + v * S::kLanes, S::mul(totals[r][v], scale));
      }
    }
  }

  template <int kRows, int kTileVectors>
  static void value_tile(const KVView& kv, const KeyRange& keys, const Probabilities& packed,
                         std::int64_t d, TilePrefetcher& prefetcher, float* result) {
    const std::int64_t g = d / group_dims(kv);
    typename S::F32 totals[kRows][kTileVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) totals[r][v] = S::zero();
    }
    for (std::int64_t strip = 0; strip < keys.num_tiles; strip += kStripTiles) {
      const std::int64_t rest = keys.num_tiles - strip;
      const std::int64_t num_tiles = rest < kStripTiles ? rest : kStripTiles;
#pragma GCC unroll 4
      for (int quad = 0; quad < kTileQuads; ++quad) {
        typename S::I32 sums[kRows][kTileVectors];
        for (int r = 0; r < kRows; ++r) {
          std::int32_t start = 0;
          if constexpr (kValueZero != 0) {
            start = static_cast<std::int32_t>(
                -kValueZero *
                std::int64_t{packed.groups[r][g].sums[strip / kStripTiles][4 * quad]});
          }
          for (int v = 0; v < kTileVectors; ++v) sums[r][v] = S::broadcast_i32(start);
        }
        for (std::int64_t t = strip; t < strip + num_tiles; ++t) {
          prefetcher.step();
          add_value_products<kRows, kTileVectors>(
              keys.tiles[t] + kv.value_offset + d * kCellBytes, value_step_bytes(kv), quad,
              packed.groups[0][g].codes + t * kTileTokens + quad * 4, sums);
        }
        for (int r = 0; r < kRows; ++r) {
          const typename S::F32 scale =
              S::broadcast(packed.groups[r][g].scales[strip / kStripTiles][4 * quad]);
          for (int v = 0; v < kTileVectors; ++v) {
            totals[r][v] = S::fma(S::to_f32(sums[r][v]), scale, totals[r][v]);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(result + r * kv.padded_dim + d + v * S::kLanes, totals[r][v]);
      }
    }
  }

  // Products with four tokens of a tile, the quad'th four.
  template <int kRows, int kTileVectors>
  static inline __attribute__((always_inline)) void add_value_products(
      const std::uint8_t* values, std::int64_t step_bytes, int quad, const std::int8_t* codes,
      typename S::I32 (&sums)[kRows][kTileVectors]) {
    constexpr std::int64_t kCodesStride = kMaxGroups * std::int64_t{sizeof(ProbabilityCodes)};
    typename S::Quads w[kTileVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) {
      const std::uint8_t* const cells = values + v * S::kLanes * kCellBytes;
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
      for (int v = 0; v < kTileVectors; ++v) {
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
