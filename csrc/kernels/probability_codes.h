// Quantizes attention probabilities to int8 codes, for products with int8 and int4 values.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "lanes.h"

namespace pellucid {
namespace {

// Sixteen probabilities share a scale: the same four tokens of each of four tiles (a strip), so
// that maxima are taken over whole vectors first, and over neighbours last.
constexpr int kStripTiles = 4;
constexpr int kRangeStrips = kRangeTiles / kStripTiles;

// number = scale * code. A fact that four tokens share is stored for each of them.
struct ProbabilityCodes {
  alignas(64) std::int8_t codes[kRangeTokens];
  alignas(64) float scales[kRangeStrips][kTileTokens];
  alignas(64) std::int32_t sums[kRangeStrips][kTileTokens];  // of the codes that share a scale
};

// Each lane gets f over the four of its quad.
template <class Vectors, class F>
inline __attribute__((always_inline)) void over_quads(Vectors& vectors, F f) {
#pragma GCC unroll 4
  for (auto& x : vectors) {
    x = f(x, elementwise::swap_neighbours(x));
    x = f(x, elementwise::swap_pairs(x));
  }
}

// Codes of probabilities times scales of values, both [num_strips][4 * 16]. Products are negative
// where the scales are; infinite ones make the scale infinite.
template <bool kWithSums>
inline void quantize_probabilities(std::int64_t num_strips, const float* probabilities,
                                   const float* value_scales, ProbabilityCodes& result) {
  using elementwise::IntVector;
  using elementwise::kVectorLanes;
  using elementwise::kVectors;
  using elementwise::Lanes;
  using elementwise::WholeVector;
  typedef std::int8_t Codes __attribute__((vector_size(kVectorLanes)));
  typedef std::uint32_t UnsignedVector __attribute__((vector_size(4 * kVectorLanes)));
  constexpr float kSmallest = 0x1p-100f;  // keeps the inverse finite
  constexpr float kRound = 12582912.0f;   // 1.5 * 2^23: adding it leaves no bits for fractions

  for (std::int64_t strip = 0; strip < num_strips; ++strip) {
    const std::int64_t first = strip * kStripTiles * kTileTokens;
    Lanes tiles[kStripTiles];
    Lanes max = kSmallest;
#pragma GCC unroll 4
    for (int t = 0; t < kStripTiles; ++t) {
      const WholeVector at{first + t * kTileTokens};
      tiles[t] = at(probabilities) * at(value_scales);
      max = elementwise::max(elementwise::magnitude(tiles[t]), max);
    }
    over_quads(max.vectors, [](auto a, auto b) { return a > b ? a : b; });
    const Lanes inverse = 127.0f / max;
    UnsignedVector sums[kVectors] = {};  // codes of NaN are any number, their sum wraps
#pragma GCC unroll 4
    for (int t = 0; t < kStripTiles; ++t) {
      const Lanes rounded = (tiles[t] * inverse + kRound) - kRound;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const IntVector codes = __builtin_convertvector(rounded.vectors[v], IntVector);
        const Codes bytes = __builtin_convertvector(codes, Codes);
        __builtin_memcpy(result.codes + first + t * kTileTokens + v * kVectorLanes, &bytes,
                         sizeof(bytes));
        if constexpr (kWithSums) sums[v] += reinterpret_cast<UnsignedVector>(codes);
      }
    }
    WholeVector{0}.store(result.scales[strip], max * (1.0f / 127.0f));
    if constexpr (kWithSums) {
      over_quads(sums, [](auto a, auto b) { return a + b; });
      __builtin_memcpy(result.sums[strip], sums, sizeof(sums));
    }
  }
}

}  // namespace
}  // namespace pellucid
