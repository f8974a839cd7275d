// Probabilities of a range of keys as codes of 7 bits and a sign.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "lanes.h"

namespace pellucid {
namespace {

// Sixteen probabilities share a scale: the same four of the tokens of each of four tiles, so that
// maxima are taken of whole vectors first and of neighbours last.
constexpr int kStripTiles = 4;
constexpr int kTileQuads = kTileTokens / 4;
constexpr int kRangeShares = kRangeTiles / kStripTiles * kTileQuads;

struct ProbabilityCodes {
  alignas(64) std::int8_t codes[kRangeTokens];  // number = scale * code
  float scales[kRangeShares];                   // [strip][quad]
  std::int32_t sums[kRangeShares];              // of codes
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

// Probabilities times scales of values, [num_tiles][16]. They are negative where the scales are;
// infinite ones make the scale infinite.
inline void quantize_probabilities(std::int64_t num_tiles, const float* x,
                                   ProbabilityCodes& result) {
  using elementwise::IntVector;
  using elementwise::kVectorLanes;
  using elementwise::kVectors;
  using elementwise::Lanes;
  typedef std::int8_t Codes __attribute__((vector_size(kVectorLanes)));
  constexpr float kSmallest = 0x1p-100f;  // keeps the inverse finite
  constexpr float kRound = 12582912.0f;   // 1.5 * 2^23: adding it leaves no bits for fractions

  for (std::int64_t strip = 0; strip < num_tiles; strip += kStripTiles) {
    const std::int64_t end = strip + kStripTiles < num_tiles ? strip + kStripTiles : num_tiles;
    Lanes tiles[kStripTiles] = {};
    Lanes max = kSmallest;
    for (std::int64_t t = strip; t < end; ++t) {
      tiles[t - strip] = elementwise::WholeVector{t * kTileTokens}(x);
      max = elementwise::max(elementwise::magnitude(tiles[t - strip]), max);
    }
    over_quads(max.vectors, [](auto a, auto b) { return a > b ? a : b; });
    const Lanes inverse = 127.0f / max;
    IntVector sums[kVectors] = {};
    for (std::int64_t t = strip; t < end; ++t) {
      const Lanes rounded = (tiles[t - strip] * inverse + kRound) - kRound;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const IntVector codes = __builtin_convertvector(rounded.vectors[v], IntVector);
        const Codes bytes = __builtin_convertvector(codes, Codes);
        __builtin_memcpy(result.codes + t * kTileTokens + v * kVectorLanes, &bytes, sizeof(bytes));
        sums[v] += codes;
      }
    }
    over_quads(sums, [](auto a, auto b) { return a + b; });
    const Lanes scales = max * (1.0f / 127.0f);
    for (int quad = 0; quad < kTileQuads; ++quad) {
      const int lane = 4 * quad;
      result.scales[strip / kStripTiles * kTileQuads + quad] = scales[lane];
      result.sums[strip / kStripTiles * kTileQuads + quad] =
          sums[lane / kVectorLanes][lane % kVectorLanes];
    }
  }
}

}  // namespace
}  // namespace pellucid
