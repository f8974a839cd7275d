// Lanes: sixteen floats side by side, in the widest vectors of the level that a file is compiled
// for. They are the vector types of gcc and clang, on every architecture. Operations are IEEE's and
// none are fused, so all levels compute the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shuffle.h"

namespace pellucid {
namespace {
namespace elementwise {

#define PELLUCID_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;

#if defined(__AVX512F__)
constexpr int kVectorLanes = 16;
#elif defined(__AVX2__)
constexpr int kVectorLanes = 8;
#else
constexpr int kVectorLanes = 4;
#endif

constexpr int kVectors = kLanes / kVectorLanes;

typedef float Vector __attribute__((vector_size(4 * kVectorLanes)));
typedef std::int32_t IntVector __attribute__((vector_size(4 * kVectorLanes)));

struct Lanes {
  Vector vectors[kVectors];

  Lanes() = default;
  PELLUCID_INLINE Lanes(float x) {  // sixteen times the same number
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) vectors[i] = x - Vector{};  // x, even if it is -0
  }
  PELLUCID_INLINE float operator[](int lane) const {
    return vectors[lane / kVectorLanes][lane % kVectorLanes];
  }
};

// f(vectors of x...), vector by vector.
template <class F, class... X>
PELLUCID_INLINE Lanes each(F f, const X&... x) {
  Lanes y;
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) y.vectors[i] = f(x.vectors[i]...);
  return y;
}

PELLUCID_INLINE Lanes operator+(Lanes a, Lanes b) {
  return each([](Vector x, Vector y) { return x + y; }, a, b);
}
PELLUCID_INLINE Lanes operator-(Lanes a, Lanes b) {
  return each([](Vector x, Vector y) { return x - y; }, a, b);
}
PELLUCID_INLINE Lanes operator*(Lanes a, Lanes b) {
  return each([](Vector x, Vector y) { return x * y; }, a, b);
}
PELLUCID_INLINE Lanes operator/(Lanes a, Lanes b) {
  return each([](Vector x, Vector y) { return x / y; }, a, b);
}
PELLUCID_INLINE Lanes operator-(Lanes a) {
  return each([](Vector x) { return -x; }, a);
}

PELLUCID_INLINE Lanes& operator+=(Lanes& a, Lanes b) { return a = a + b; }

PELLUCID_INLINE Lanes magnitude(Lanes a) {
  return each(
      [](Vector x) {
        return reinterpret_cast<Vector>(reinterpret_cast<IntVector>(x) & 0x7fffffff);
      },
      a);
}

// The greater one; b where either is not a number.
PELLUCID_INLINE Lanes max(Lanes a, Lanes b) {
  return each([](Vector x, Vector y) { return x > y ? x : y; }, a, b);
}

// a < b ? yes : no, in each lane.
PELLUCID_INLINE Lanes where_less(Lanes a, Lanes b, Lanes yes, Lanes no) {
  return each([](Vector x, Vector y, Vector u, Vector v) { return x < y ? u : v; }, a, b, yes, no);
}

// a == b ? yes : no, in each lane.
PELLUCID_INLINE Lanes where_equal(Lanes a, Lanes b, Lanes yes, Lanes no) {
  return each([](Vector x, Vector y, Vector u, Vector v) { return x == y ? u : v; }, a, b, yes, no);
}

// 2^n of whole numbers n, -126 <= n <= 127; 0 for n = -127.
PELLUCID_INLINE Lanes power_of_two(Lanes n) {
  return each(
      [](Vector x) {
        return reinterpret_cast<Vector>((__builtin_convertvector(x, IntVector) + 127) << 23);
      },
      n);
}

// 1 0 3 2 ... and 2 3 0 1 ...
template <class V>
PELLUCID_INLINE V swap_neighbours(V x) {
#if defined(__AVX512F__)
  return shuffle<1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14>(x, x);
#elif defined(__AVX2__)
  return shuffle<1, 0, 3, 2, 5, 4, 7, 6>(x, x);
#else
  return shuffle<1, 0, 3, 2>(x, x);
#endif
}

template <class V>
PELLUCID_INLINE V swap_pairs(V x) {
#if defined(__AVX512F__)
  return shuffle<2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13>(x, x);
#elif defined(__AVX2__)
  return shuffle<2, 3, 0, 1, 6, 7, 4, 5>(x, x);
#else
  return shuffle<2, 3, 0, 1>(x, x);
#endif
}

// The place of one vector's lanes in arrays that are read together.
struct WholeVector {
  std::int64_t begin;

  PELLUCID_INLINE Lanes operator()(const float* array) const {
    Lanes x;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      __builtin_memcpy(&x.vectors[i], array + begin + i * kVectorLanes, sizeof(Vector));
    }
    return x;
  }
  PELLUCID_INLINE void store(float* array, Lanes x) const {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      __builtin_memcpy(array + begin + i * kVectorLanes, &x.vectors[i], sizeof(Vector));
    }
  }
  PELLUCID_INLINE Lanes without_rest(Lanes x) const { return x; }
};

// The end of an array: the lanes beyond it are read as zero and not written.
struct PartOfVector {
  std::int64_t begin;
  std::int64_t count;

  PELLUCID_INLINE Lanes operator()(const float* array) const {
    Lanes x(0.0f);
    __builtin_memcpy(&x, array + begin, sizeof(float) * static_cast<std::size_t>(count));
    return x;
  }
  PELLUCID_INLINE void store(float* array, Lanes x) const {
    __builtin_memcpy(array + begin, &x, sizeof(float) * static_cast<std::size_t>(count));
  }
  PELLUCID_INLINE Lanes without_rest(Lanes x) const {
    const Lanes all = x;
    x = Lanes(0.0f);
    __builtin_memcpy(&x, &all, sizeof(float) * static_cast<std::size_t>(count));
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
  Lanes sums(0.0f);
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
  x = max(-87.0f, x);
  const Lanes n = (x * 1.44269504f + kRound) - kRound;
  const Lanes r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Lanes p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return (p * (r * r) + r + 1.0f) * power_of_two(n);
}

// 1 / (1 + exp(-x)), with an exponential that cannot overflow.
PELLUCID_INLINE Lanes sigmoid(Lanes x) {
  const Lanes decay = exp_of_negative(-magnitude(x));
  return where_less(x, 0.0f, decay, 1.0f) / (1.0f + decay);
}

// Cephes: a polynomial near zero, where 1 - exp(-2 x) would cancel.
PELLUCID_INLINE Lanes tanh(Lanes x) {
  const Lanes size = magnitude(x);
  const Lanes decay = exp_of_negative(-2.0f * size);
  const Lanes far = (1.0f - decay) / (1.0f + decay);
  const Lanes square = x * x;
  Lanes p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square + -5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square + -3.33332819422e-1f;
  const Lanes near = p * square * x + x;
  return where_less(size, 0.625f, near, where_less(x, 0.0f, -far, far));
}

// The normal distribution's mass below x: erfc(-x / sqrt(2)) / 2, with the Chebyshev fit of erfc of
// Numerical Recipes (relative error 1.2e-7).
PELLUCID_INLINE Lanes normal_cdf(Lanes x) {
  const Lanes z = magnitude(x) * 0.707106781f;
  const Lanes t = 1.0f / (1.0f + 0.5f * z);
  Lanes p = 0.17087277f;
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
  return where_less(x, 0.0f, tail, 1.0f - tail);
}

#undef PELLUCID_INLINE

}  // namespace elementwise
}  // namespace
}  // namespace pellucid
