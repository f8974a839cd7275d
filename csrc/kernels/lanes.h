// Sixteen floats side by side, in the vectors that gcc and clang have on every architecture: each
// level makes of them what it can. Operations are IEEE's, and none are fused, so all levels get the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pellucid {
namespace {
namespace elementwise {

constexpr int kLanes = 16;

typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t IntLanes __attribute__((vector_size(4 * kLanes)));

#define PELLUCID_INLINE inline __attribute__((always_inline))

PELLUCID_INLINE Lanes broadcast(float x) { return Lanes{} + x; }

PELLUCID_INLINE Lanes magnitude(Lanes x) {
  return reinterpret_cast<Lanes>(reinterpret_cast<IntLanes>(x) & 0x7fffffff);
}

// Where the lanes of one vector lie in arrays that are walked together.
struct WholeVector {
  std::int64_t begin;

  PELLUCID_INLINE Lanes operator()(const float* array) const {
    Lanes x;
    __builtin_memcpy(&x, array + begin, sizeof(x));
    return x;
  }
  PELLUCID_INLINE void store(float* array, Lanes x) const {
    __builtin_memcpy(array + begin, &x, sizeof(x));
  }
  PELLUCID_INLINE Lanes without_rest(Lanes x) const { return x; }
};

// The end of an array: the lanes beyond it are read as zero and not written.
struct PartOfVector {
  std::int64_t begin;
  std::int64_t count;

  PELLUCID_INLINE Lanes operator()(const float* array) const {
    Lanes x{};
    __builtin_memcpy(&x, array + begin, sizeof(float) * static_cast<std::size_t>(count));
    return x;
  }
  PELLUCID_INLINE void store(float* array, Lanes x) const {
    __builtin_memcpy(array + begin, &x, sizeof(float) * static_cast<std::size_t>(count));
  }
  PELLUCID_INLINE Lanes without_rest(Lanes x) const {
    for (std::int64_t i = count; i < kLanes; ++i) x[i] = 0.0f;
    return x;
  }
};

// y [size] = f(at), where at(array) are the numbers of `array` at the same places. y may be one of
// the arrays.
template <class F>
PELLUCID_INLINE void map(std::int64_t size, float* y, F f) {
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) WholeVector{i}.store(y, f(WholeVector{i}));
  if (i < size) {
    const PartOfVector rest{i, size - i};
    rest.store(y, f(rest));
  }
}

// The sum of f(at) over [0, size), in an order that `size` alone decides.
template <class F>
PELLUCID_INLINE float sum(std::int64_t size, F f) {
  Lanes sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sums += f(WholeVector{i});
  if (i < size) {
    const PartOfVector rest{i, size - i};
    sums += rest.without_rest(f(rest));
  }
  float lanes[kLanes];
  __builtin_memcpy(lanes, &sums, sizeof(lanes));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// exp(x) for x <= 0, within 2 ulp; below -87, where floats are about to become subnormal, exp(-87).
// Reduction to |r| <= log(2) / 2 in two steps that are exact, polynomial of Moshier's Cephes.
PELLUCID_INLINE Lanes exp_of_negative(Lanes x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
  x = x < -87.0f ? broadcast(-87.0f) : x;
  const Lanes n = (x * 1.44269504f + kRound) - kRound;
  const Lanes r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Lanes p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const IntLanes exponent = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  return (p * (r * r) + r + 1.0f) * reinterpret_cast<Lanes>(exponent);
}

// 1 / (1 + exp(-x)), with an exponential that cannot overflow.
PELLUCID_INLINE Lanes sigmoid(Lanes x) {
  const Lanes decay = exp_of_negative(-magnitude(x));
  return (x < 0.0f ? decay : broadcast(1.0f)) / (1.0f + decay);
}

// Cephes: a polynomial near zero, where 1 - exp(-2 x) would cancel.
PELLUCID_INLINE Lanes tanh(Lanes x) {
  const Lanes size = magnitude(x);
  const Lanes decay = exp_of_negative(-2.0f * size);
  const Lanes far = (1.0f - decay) / (1.0f + decay);
  const Lanes square = x * x;
  Lanes p = broadcast(-5.70498872745e-3f);
  p = p * square + 2.06390887954e-2f;
  p = p * square + -5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square + -3.33332819422e-1f;
  const Lanes near = p * square * x + x;
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

// The normal distribution's mass below x: erfc(-x / sqrt(2)) / 2, with the Chebyshev fit of erfc of
// Numerical Recipes (relative error 1.2e-7).
PELLUCID_INLINE Lanes normal_cdf(Lanes x) {
  const Lanes z = magnitude(x) * 0.707106781f;
  const Lanes t = 1.0f / (1.0f + 0.5f * z);
  Lanes p = broadcast(0.17087277f);
  p = p * t + -0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t + -1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t + -0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t + -1.26551223f;
  const Lanes tail = 0.5f * t * exp_of_negative(p - z * z);
  return x < 0.0f ? tail : 1.0f - tail;
}

#undef PELLUCID_INLINE

}  // namespace elementwise
}  // namespace
}  // namespace pellucid
