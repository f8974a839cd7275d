// Softmax over a range of keys, in powers of two: e^x = 2^(x log2 e), and the factor is part of the
// scores' scale.
#pragma once

#include <cfloat>
#include <cstdint>

#include "attention_kernels.h"
#include "lanes.h"
#include "prefetcher.h"

namespace pellucid {
namespace {
namespace softmax {

using elementwise::Lanes;
using elementwise::max;

static_assert(elementwise::kLanes == kTileTokens, "one vector of scores per tile of keys");

#define PELLUCID_INLINE inline __attribute__((always_inline))

PELLUCID_INLINE Lanes load(const float* p) { return elementwise::WholeVector{0}(p); }

PELLUCID_INLINE void store(float* p, Lanes x) { elementwise::WholeVector{0}.store(p, x); }

// Combines all lanes, halves with halves.
template <class F>
PELLUCID_INLINE float reduce(Lanes x, F f) {
  typedef float Half __attribute__((vector_size(32)));
  typedef float Quarter __attribute__((vector_size(16)));
  Half halves[2];
#pragma GCC unroll 4
  for (int v = 0; v < elementwise::kVectors; ++v) {
    const elementwise::Vector vector = x.vectors[v];
    __builtin_memcpy(reinterpret_cast<char*>(halves) + v * sizeof(vector), &vector, sizeof(vector));
  }
  const Half half = f(halves[0], halves[1]);
  Quarter quarters[2];
  __builtin_memcpy(quarters, &half, sizeof(quarters));
  const Quarter quarter = f(quarters[0], quarters[1]);
  const float even = f(quarter[0], quarter[2]), odd = f(quarter[1], quarter[3]);
  return f(even, odd);
}

// 2^x for x <= 0, within 2 ulp; exactly 0 below -126.5. Polynomial of Moshier's Cephes (exp2f).
PELLUCID_INLINE Lanes exp2_of_negative(Lanes x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
  x = max(-127.0f, x);
  const Lanes n = (x + kRound) - kRound;
  const Lanes f = x - n;
  Lanes p = 1.535336188319500e-4f;
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  return p * elementwise::power_of_two(n);
}

// Keys [begin, end) that a query sees of a range's `num_keys`; the scores of the others become
// -infinity.
PELLUCID_INLINE void hide_scores(std::int64_t begin, std::int64_t end, std::int64_t num_keys,
                                 float* scores) {
  constexpr float kHidden = -__builtin_inff();
  for (std::int64_t key = 0; key < begin && key < num_keys; ++key) scores[key] = kHidden;
  for (std::int64_t key = end < 0 ? 0 : end; key < num_keys; ++key) scores[key] = kHidden;
}

// softcap * tanh(score), in units of log 2.
PELLUCID_INLINE void cap_scores(float softcap, std::int64_t num_tiles, float* scores) {
  constexpr float kLog2E = 1.44269504f;
  const Lanes factor = softcap * kLog2E;
  for (std::int64_t t = 0; t < num_tiles; ++t, scores += kTileTokens) {
    store(scores, factor * elementwise::tanh(load(scores)));
  }
}

// Scores become 2^(score - max).
PELLUCID_INLINE void exponentiate(std::int64_t num_tiles, float* scores, Prefetcher& prefetcher,
                                  float* row_max, float* row_total) {
  Lanes maxima = -FLT_MAX;  // finite: a row that sees nothing gets zeros, not NaNs
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    maxima = max(load(scores + t * kTileTokens), maxima);
  }
  *row_max = reduce(maxima, [](auto a, auto b) { return a > b ? a : b; });
  const Lanes greatest = *row_max;
  Lanes totals = 0.0f;
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    prefetcher.step();
    const Lanes p = exp2_of_negative(load(scores + t * kTileTokens) - greatest);
    store(scores + t * kTileTokens, p);
    totals += p;
  }
  *row_total = reduce(totals, [](auto a, auto b) { return a + b; });
}

inline void fold(const Partials& next, std::int64_t num_rows, std::int64_t padded_dim,
                 const Partials& folded) {
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const float max = next.max[r] > folded.max[r] ? next.max[r] : folded.max[r];
    const Lanes old_factor = exp2_of_negative(folded.max[r] - max);
    const Lanes new_factor = exp2_of_negative(next.max[r] - max);
    folded.max[r] = max;
    folded.total[r] = folded.total[r] * old_factor[0] + next.total[r] * new_factor[0];
    const float* const from = next.values + r * padded_dim;
    float* const to = folded.values + r * padded_dim;
    for (std::int64_t d = 0; d < padded_dim; d += elementwise::kLanes) {
      store(to + d, load(to + d) * old_factor + load(from + d) * new_factor);
    }
  }
}

inline void finish(const Partials& folded, std::int64_t row, std::int64_t padded_dim,
                   std::int64_t head_dim, float* y) {
  const float factor = 1.0f / folded.total[row];
  const float* const values = folded.values + row * padded_dim;
  // Zero is added for its sign: -0 + 0 is +0. The sign of a sum of zeros is the one thing that
  // probabilities of zero can change.
  elementwise::map(head_dim, y, [&](auto at) { return at(values) * factor + 0.0f; });
}

#undef PELLUCID_INLINE

}  // namespace softmax
}  // namespace
}  // namespace pellucid
