// Softmax over a range of keys, in powers of two: e^x = 2^(x log2 e), and the scores' scale
// contains the factor log2 e.
#pragma once

#include <cfloat>
#include <cstdint>

#include "attention_kernels.h"
#include "lanes.h"
#include "tile_prefetcher.h"

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

PELLUCID_INLINE float sum(Lanes x) {
  return reduce(x, [](auto a, auto b) { return a + b; });
}

// 2^x for x <= 0, within 2 ulp; exactly 0 below -126.5. The polynomial of degree 5 is 1 at 0 and
// has the smallest relative error on [-1/2, 1/2]. It was found by linear programming on 4001
// Chebyshev nodes, then by a search among its neighbours in f32.
template <class S>
PELLUCID_INLINE typename S::F32 exp2_of_negative(typename S::F32 x) {
  x = S::max(S::broadcast(-127.0f), x);
  const typename S::I32 n = S::round(x);
  const typename S::F32 f = S::sub(x, S::to_f32(n));
  typename S::F32 p = S::broadcast(0x1.5a5592p-10f);
  p = S::fma(p, f, S::broadcast(0x1.3ce8bp-7f));
  p = S::fma(p, f, S::broadcast(0x1.c6badp-5f));
  p = S::fma(p, f, S::broadcast(0x1.ebf9c4p-3f));
  p = S::fma(p, f, S::broadcast(0x1.62e426p-1f));
  p = S::fma(p, f, S::broadcast(1.0f));
  return S::mul(p, S::power_of_two(n));
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

// The greatest score; finite, so that a row that sees nothing gets zeros, not NaNs.
PELLUCID_INLINE float greatest(std::int64_t num_tiles, const float* scores) {
  Lanes maxima = -FLT_MAX;
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    maxima = max(load(scores + t * kTileTokens), maxima);
  }
  return reduce(maxima, [](auto a, auto b) { return a > b ? a : b; });
}

// Replaces scores by 2^(score - max), and returns their sum.
template <class S>
PELLUCID_INLINE float exponentiate(std::int64_t num_tiles, float max, TilePrefetcher& prefetcher,
                                   float* scores) {
  Lanes totals = 0.0f;
  for (std::int64_t t = 0; t < num_tiles; ++t, scores += kTileTokens) {
    prefetcher.step();
    for (int i = 0; i < kTileTokens; i += S::kLanes) {
      S::store(scores + i, exp2_of_negative<S>(S::sub(S::load(scores + i), S::broadcast(max))));
    }
    totals += load(scores);
  }
  return sum(totals);
}

template <class S>
void fold(const Partials& next, std::int64_t num_rows, std::int64_t padded_dim,
          const Partials& folded) {
  for (std::int64_t begin = 0; begin < num_rows; begin += S::kLanes) {
    const std::int64_t count = num_rows - begin < S::kLanes ? num_rows - begin : S::kLanes;
    const typename S::F32 old_max = S::load_first(folded.max + begin, count);
    const typename S::F32 new_max = S::load_first(next.max + begin, count);
    const typename S::F32 max = S::max(new_max, old_max);
    const typename S::F32 old_factor = exp2_of_negative<S>(S::sub(old_max, max));
    const typename S::F32 new_factor = exp2_of_negative<S>(S::sub(new_max, max));
    S::store_first(folded.max + begin, max, count);
    S::store_first(folded.total + begin,
                   S::fma(S::load_first(next.total + begin, count), new_factor,
                          S::mul(S::load_first(folded.total + begin, count), old_factor)),
                   count);
    float old_factors[S::kLanes], new_factors[S::kLanes];
    S::store(old_factors, old_factor);
    S::store(new_factors, new_factor);
    for (std::int64_t i = 0; i < count; ++i) {
      const float* const from = next.values + (begin + i) * padded_dim;
      float* const to = folded.values + (begin + i) * padded_dim;
      const typename S::F32 old_part = S::broadcast(old_factors[i]);
      const typename S::F32 new_part = S::broadcast(new_factors[i]);
      for (std::int64_t d = 0; d < padded_dim; d += S::kLanes) {
        S::store(to + d, S::fma(S::load(from + d), new_part, S::mul(S::load(to + d), old_part)));
      }
    }
  }
}

// 2^max of the row / (2^max * total + e^sink), where max is in units of log 2.
inline float factor_with_sink(float max, float total, float sink) {
  const float own = max * 0.693147181f;
  const float peak = own > sink ? own : sink;
  const float row_share = elementwise::exp_of_negative(own - peak)[0];
  const float sink_share = elementwise::exp_of_negative(sink - peak)[0];
  return row_share / (row_share * total + sink_share);
}

inline void finish(const Partials& folded, std::int64_t row, std::int64_t padded_dim,
                   std::int64_t head_dim, const float* sink, float* y) {
  const float factor = sink == nullptr
                           ? 1.0f / folded.total[row]
                           : factor_with_sink(folded.max[row], folded.total[row], *sink);
  const float* const values = folded.values + row * padded_dim;
  // Adding zero makes -0 a +0: probabilities of zero can change nothing but the sign of a sum of
  // zeros.
  elementwise::map(head_dim, y, [&](auto at) { return at(values) * factor + 0.0f; });
}

#undef PELLUCID_INLINE

}  // namespace softmax
}  // namespace
}  // namespace pellucid
