// Keys and values as codes of 8 or 4 bits. Queries and probabilities become codes of 8 bits; products
// are summed exactly within a group, and groups in f32.
//
// A key's scale belongs to its lane. A value's scale belongs to its token, over which the sum runs:
// it is multiplied into the probability, and the 16 products of a tile are then quantized together.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "attention_products.h"
#include "prefetcher.h"
#include "prepare_rows.h"
#include "quantized_tile.h"

namespace pellucid {
namespace {

// How a vector of numbers becomes codes that share a scale. Both return zeros for a vector of zeros,
// and the scale NaN for one that is not finite.
template <class S, int kBits>
struct Quantizer;

// code = round(x * 127 / amax), see prepare_rows.h.
template <class S>
struct Quantizer<S, 8> {
  static constexpr int kStoredZero = 128;

  static float quantize(const float* x, std::int64_t size, std::int64_t padded,
                        std::int8_t* codes) {
    float scale;
    quantize_group<S>(x, size, padded, codes, &scale);
    return scale;
  }
};

// The number of greatest magnitude becomes -8, so that all 16 codes are used (as in GGUF's Q4_0).
template <class S>
struct Quantizer<S, 4> {
  static constexpr int kStoredZero = 8;

  static float quantize(const float* x, std::int64_t size, std::int64_t padded,
                        std::int8_t* codes) {
    constexpr float kSmallest = 0x1p-100f;  // below it 8 / amax would overflow
    __builtin_memset(codes, 0, static_cast<std::size_t>(padded));
    float extreme = 0.0f, amax = 0.0f;
    bool is_finite = true;
    for (std::int64_t i = 0; i < size; ++i) {
      const float magnitude = __builtin_fabsf(x[i]);
      is_finite = is_finite && magnitude <= __FLT_MAX__;
      if (magnitude > amax) {
        amax = magnitude;
        extreme = x[i];
      }
    }
    if (!is_finite) return __builtin_nanf("");
    if (amax < kSmallest) return 0.0f;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
    const float inverse = -8.0f / extreme;
    for (std::int64_t i = 0; i < size; ++i) {
      const float code = (x[i] * inverse + kRound) - kRound;
      codes[i] = static_cast<std::int8_t>(code > 7.0f ? 7.0f : code);
    }
    return extreme / -8.0f;
  }
};

// Codes is Codes8 or Codes4; kVectors * S::kLanes divides kInt4GroupDims.
template <class S, class Codes, int kRows_, int kVectors>
struct QuantizedAttention {
  static constexpr int kMaxRows = kRows_;

 private:
  static constexpr int kBits = Codes::kBits;
  static constexpr int kMaxGroups = kBits == 8 ? 1 : kMaxHeadDim / kInt4GroupDims;
  static constexpr int kCellInputs = 4 * Codes::kQuads;
  static constexpr int kCellBytes = 4;
  static constexpr std::int64_t kKeyStepBytes = kTileTokens * kCellBytes;
  static_assert(kInt4GroupDims % (kVectors * S::kLanes) == 0, "a vector's dimensions share scales");

 public:
  struct Probabilities {
    alignas(64) std::int8_t codes[kMaxRows][kMaxGroups][kRangeTokens];
    float scales[kMaxRows][kMaxGroups][kRangeTiles];
    std::int32_t starts[kMaxRows][kMaxGroups][kRangeTiles];
  };

  static void prepare(const KVView& kv, const float* q, std::int64_t row,
                      const QueryRows& queries) {
    std::int8_t* const codes = static_cast<std::int8_t*>(queries.values) + row * kv.padded_dim;
    queries.scales[row] *= Quantizer<S, 8>::quantize(q, kv.head_dim, kv.padded_dim, codes);
    const std::int64_t dims = group_dims(kv);
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      std::int32_t sum = 0;
      for (std::int64_t d = 0; d < dims; ++d) sum += codes[g * dims + d];
      queries.starts[row * kv.num_groups + g] = -Codes::kZeroPoint * sum;
    }
  }

  // A token's k and v [D] into its tile.
  static void store(const KVView& kv, const float* k, const float* v, std::int64_t token,
                    std::uint8_t* tile) {
    store_vector(kv, k, token, tile, [&](std::int64_t d) {
      return Place{tile + d / kCellInputs * kKeyStepBytes + token * kCellBytes, d % kCellInputs};
    });
    std::uint8_t* const values = tile + kv.value_offset;
    store_vector(kv, v, token, values, [&](std::int64_t d) {
      return Place{values + token / kCellInputs * value_step_bytes(kv) + d * kCellBytes,
                   token % kCellInputs};
    });
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
  static void pack(const KVView& kv, const KeyRange& keys, std::int64_t visible_end,
                   const float* scores, std::int64_t row, Probabilities& packed) {
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      for (std::int64_t t = 0; t < keys.num_tiles; ++t) {
        const float* const value_scales =
            scales_of(kv, keys.tiles[t] + kv.value_offset) + g * kTileTokens;
        float products[kTileTokens];
        for (int i = 0; i < kTileTokens; i += S::kLanes) {
          S::store(products + i,
                   S::mul(S::load(scores + t * kTileTokens + i), S::load(value_scales + i)));
        }
        // Scales beyond what the query sees may be the rests of another request, infinities and all.
        const bool is_last = keys.ends_with_queries && t + 1 == keys.num_tiles;
        const std::int64_t num_visible = is_last ? visible_end - t * kTileTokens : kTileTokens;
        for (std::int64_t i = num_visible; i < kTileTokens; ++i) products[i] = 0.0f;
        const std::int32_t sum =
            quantize_group<S>(products, kTileTokens, kTileTokens,
                              packed.codes[row][g] + t * kTileTokens, &packed.scales[row][g][t]);
        packed.starts[row][g][t] = -Codes::kZeroPoint * sum;
      }
    }
  }

  // Sums of values [kRows][padded_dim].
  template <int kRows>
  static void values(const KVView& kv, const KeyRange& keys, const Probabilities& packed,
                     const std::int64_t*, Prefetcher& prefetcher, float* sums) {
    std::int64_t d = 0;
    for (; d + kVectors * S::kLanes <= kv.padded_dim; d += kVectors * S::kLanes) {
      value_tile<kRows, kVectors>(kv, keys, packed, d, prefetcher, sums);
    }
    for (; d < kv.padded_dim; d += S::kLanes) {
      value_tile<kRows, 1>(kv, keys, packed, d, prefetcher, sums);
    }
  }

 private:
  struct Place {
    std::uint8_t* cell;
    std::int64_t input;  // of the cell
  };

  static std::int64_t group_dims(const KVView& kv) { return kv.padded_dim / kv.num_groups; }
  static std::int64_t value_step_bytes(const KVView& kv) { return kv.padded_dim * kCellBytes; }

  // [groups][16 tokens], behind the codes of K or V.
  static const float* scales_of(const KVView& kv, const std::uint8_t* codes) {
    return reinterpret_cast<const float*>(codes + kTileTokens * kv.padded_dim * kBits / 8);
  }

  // `place_of(d)` is where dimension d of the token goes.
  template <class F>
  static void store_vector(const KVView& kv, const float* x, std::int64_t token,
                           std::uint8_t* begin, F place_of) {
    const std::int64_t dims = group_dims(kv);
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      const std::int64_t first = g * dims;
      const std::int64_t rest = kv.head_dim - first;
      std::int8_t codes[kMaxHeadDim];
      const float scale =
          Quantizer<S, kBits>::quantize(x + first, rest < dims ? rest : dims, dims, codes);
      for (std::int64_t d = 0; d < dims; ++d) put(place_of(first + d), codes[d]);
      const std::int64_t scale_at = (g * kTileTokens + token) * std::int64_t{sizeof(float)};
      __builtin_memcpy(begin + kTileTokens * kv.padded_dim * kBits / 8 + scale_at, &scale,
                       sizeof(scale));
    }
  }

  static void put(const Place& place, std::int8_t code) {
    const int stored = code + Quantizer<S, kBits>::kStoredZero;
    std::uint8_t& byte = place.cell[place.input % 4];
    if constexpr (kBits == 8) {
      byte = static_cast<std::uint8_t>(stored);
    } else {
      const int shift = place.input < 4 ? 0 : 4;
      byte = static_cast<std::uint8_t>((byte & (0xf0 >> shift)) | stored << shift);
    }
  }

  template <int kRows, int kTileVectors>
  static void score_tile(const KVView& kv, const QueryRows& queries, const KeyRange& keys,
                         std::int64_t row, std::int64_t key, Prefetcher& prefetcher,
                         float* scores) {
    const std::uint8_t* columns[kTileVectors];
    const float* key_scales[kTileVectors];
    typename S::F32 totals[kRows][kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) {
      const std::int64_t column = key + v * S::kLanes;
      const std::uint8_t* const tile = keys.tiles[column / kTileTokens];
      columns[v] = tile + column % kTileTokens * kCellBytes;
      key_scales[v] = scales_of(kv, tile) + column % kTileTokens;
      for (int r = 0; r < kRows; ++r) totals[r][v] = S::zero();
    }
    const std::int64_t num_steps = group_dims(kv) / kCellInputs;
    const std::int8_t* q = static_cast<const std::int8_t*>(queries.values) + row * kv.padded_dim;
    const std::int32_t* starts = queries.starts + row * kv.num_groups;
    for (std::int64_t g = 0; g < kv.num_groups; ++g) {
      typename S::I32 sums[kRows][kTileVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kTileVectors; ++v) {
          sums[r][v] = S::broadcast_i32(starts[r * kv.num_groups + g]);
        }
      }
      add_code_products<S, Codes, kRows, kTileVectors>(columns, kKeyStepBytes, num_steps, q,
                                                       kv.padded_dim, prefetcher, sums);
      for (int v = 0; v < kTileVectors; ++v) {
        const typename S::F32 scale = S::load(key_scales[v] + g * kTileTokens);
        for (int r = 0; r < kRows; ++r) {
          totals[r][v] = S::fma(S::to_f32(sums[r][v]), scale, totals[r][v]);
        }
        columns[v] += num_steps * kKeyStepBytes;
      }
      q += group_dims(kv);
    }
    for (int r = 0; r < kRows; ++r) {
      const typename S::F32 scale = S::broadcast(queries.scales[row + r]);
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(scores + r * kRangeTokens + key + v * S::kLanes, S::mul(totals[r][v], scale));
      }
    }
  }

  template <int kRows, int kTileVectors>
  static void value_tile(const KVView& kv, const KeyRange& keys, const Probabilities& packed,
                         std::int64_t d, Prefetcher& prefetcher, float* result) {
    const std::int64_t g = d / group_dims(kv);
    typename S::F32 totals[kRows][kTileVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) totals[r][v] = S::zero();
    }
    for (std::int64_t t = 0; t < keys.num_tiles; ++t) {
      const std::uint8_t* columns[kTileVectors];
      typename S::I32 sums[kRows][kTileVectors];
      for (int v = 0; v < kTileVectors; ++v) {
        columns[v] = keys.tiles[t] + kv.value_offset + (d + v * S::kLanes) * kCellBytes;
        for (int r = 0; r < kRows; ++r) sums[r][v] = S::broadcast_i32(packed.starts[r][g][t]);
      }
      add_code_products<S, Codes, kRows, kTileVectors>(
          columns, value_step_bytes(kv), kTileTokens / kCellInputs,
          packed.codes[0][g] + t * kTileTokens, kMaxGroups * kRangeTokens, prefetcher, sums);
      for (int r = 0; r < kRows; ++r) {
        const typename S::F32 scale = S::broadcast(packed.scales[r][g][t]);
        for (int v = 0; v < kTileVectors; ++v) {
          totals[r][v] = S::fma(S::to_f32(sums[r][v]), scale, totals[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) {
        S::store(result + r * kv.padded_dim + d + v * S::kLanes, totals[r][v]);
      }
    }
  }
};

}  // namespace
}  // namespace pellucid
