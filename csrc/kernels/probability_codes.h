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
template <class Vector, class F>
inline __attribute__((always_inline)) Vector over_quads(Vector x, F f) {
  x = f(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return f(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
}

// Probabilities times scales of values, [num_tiles][16]. They are negative where the scales are;
// infinite ones make the scale infinite.
inline void quantize_probabilities(std::int64_t num_tiles, const float* x,
                                   ProbabilityCodes& result) {
  using elementwise::broadcast;
  using elementwise::IntLanes;
  using elementwise::Lanes;
  typedef std::int8_t Codes __attribute__((vector_size(kTileTokens)));
  constexpr float kSmallest = 0x1p-100f;  // keeps the inverse finite
  constexpr float kRound = 12582912.0f;   // 1.5 * 2^23: adding it leaves no bits for fractions

  for (std::int64_t strip = 0; strip < num_tiles; strip += kStripTiles) {
    const std::int64_t end = strip + kStripTiles < num_tiles ? strip + kStripTiles : num_tiles;
    Lanes tiles[kStripTiles] = {};
    Lanes max = broadcast(kSmallest);
    for (std::int64_t t = strip; t < end; ++t) {
      __builtin_memcpy(&tiles[t - strip], x + t * kTileTokens, sizeof(Lanes));
      const Lanes size = elementwise::magnitude(tiles[t - strip]);
      max = size > max ? size : max;
    }
    max = over_quads(max, [](Lanes a, Lanes b) { return a > b ? a : b; });
    const Lanes inverse = 127.0f / max;
    IntLanes sums{};
    for (std::int64_t t = strip; t < end; ++t) {
      const Lanes rounded = (tiles[t - strip] * inverse + kRound) - kRound;
      const IntLanes codes = __builtin_convertvector(rounded, IntLanes);
      const Codes bytes = __builtin_convertvector(codes, Codes);
      __builtin_memcpy(result.codes + t * kTileTokens, &bytes, sizeof(bytes));
      sums += codes;
    }
    sums = over_quads(sums, [](IntLanes a, IntLanes b) { return a + b; });
    const Lanes scales = max * (1.0f / 127.0f);
    for (int quad = 0; quad < kTileQuads; ++quad) {
      result.scales[strip / kStripTiles * kTileQuads + quad] = scales[4 * quad];
      result.sums[strip / kStripTiles * kTileQuads + quad] = sums[4 * quad];
    }
  }
}

}  // namespace
}  // namespace pellucid
