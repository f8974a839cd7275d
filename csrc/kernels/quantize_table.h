// The kernels that quantize weights, written once for all levels. For 4 bits they search the scale:
// a few grids are fitted by least squares, and the grid with the smallest squared error wins, as in
// llama.cpp's make_qx_quants (ggml-quants.c). The definition is backends/quantization/weights.py;
// the operations and their order are the same, so every level computes the same bits.
#pragma once

#include <cstdint>

#include "lanes.h"
#include "quantize_kernels.h"

namespace pellucid {
namespace {
namespace quantize {

using elementwise::Lanes;
using elementwise::magnitude;
using elementwise::max;
using elementwise::where_less;

static_assert(elementwise::kLanes == kQuantizedGroups, "a lane per group");

#define PELLUCID_INLINE inline __attribute__((always_inline))

constexpr float kHighestCode = 15.0f;
constexpr float kSymmetricZeroPoint = 8.0f;
// The steps by which weights may exceed the grid: above 0 the largest weights are clipped to the
// end of the grid, and the others get a finer grid.
constexpr double kSymmetricSteps[] = {-0.9, -0.4, 0.0, 0.4, 0.9, 1.6, 2.4};
constexpr double kZeroPointSteps[] = {-1.6, -0.8, 0.0, 0.8, 1.6, 2.4};

PELLUCID_INLINE Lanes load(const float* p) { return elementwise::WholeVector{0}(p); }
PELLUCID_INLINE void store(float* p, Lanes x) { elementwise::WholeVector{0}.store(p, x); }
PELLUCID_INLINE Lanes min(Lanes a, Lanes b) { return where_less(a, b, a, b); }
PELLUCID_INLINE Lanes clip(Lanes x, Lanes low, Lanes high) { return min(max(x, low), high); }

// To the nearest whole number, halves to even; |x| < 2^22. Never -0.
PELLUCID_INLINE Lanes round(Lanes x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
  return (x + kRound) - kRound;
}

// 1 / scale, 0 where a group is all zeros or too small for a float's inverse.
PELLUCID_INLINE Lanes inverse(Lanes scale) {
  const Lanes size = magnitude(scale);
  const Lanes usable = where_less(0x1p-125f, size, scale, 1.0f);
  return where_less(0x1p-125f, size, 1.0f / usable, 0.0f);
}

// The bounds of codes are whole numbers, so clipping before rounding gives the same codes, and
// keeps `round` in its range.
PELLUCID_INLINE Lanes centered_codes(Lanes x, Lanes inverse, Lanes lowest, Lanes highest) {
  return round(clip(x * inverse, lowest, highest));
}

// The best grid so far.
struct Best {
  Lanes gain = -1.0f;
  Lanes scale = 0.0f;
  Lanes zero_point = kSymmetricZeroPoint;

  // Fits a scale to the codes round(x * inverse) + zero_point: the scale with the least squared
  // error, sum (x - scale * code)^2. Also computes how far this error is below sum x^2.
  PELLUCID_INLINE void try_grid(const float* x, std::int64_t size, Lanes inverse, Lanes zero) {
    const Lanes lowest = 0.0f - zero, highest = kHighestCode - zero;
    Lanes product = 0.0f, square = 0.0f;
    for (std::int64_t i = 0; i < size; ++i) {
      const Lanes weight = load(x + i * kQuantizedGroups);
      const Lanes code = centered_codes(weight, inverse, lowest, highest);
      product += code * weight;
      square += code * code;
    }
    square = where_less(0.0f, square, square, __builtin_inff());
    const Lanes new_gain = product * product / square;
    scale = where_less(gain, new_gain, product / square, scale);
    zero_point = where_less(gain, new_gain, zero, zero_point);
    gain = where_less(gain, new_gain, new_gain, gain);
  }
};

inline void largest(const float* x, std::int64_t size, float* result) {
  Lanes greatest = 0.0f;
  for (std::int64_t i = 0; i < size; ++i) {
    greatest = max(magnitude(load(x + i * kQuantizedGroups)), greatest);
  }
  store(result, greatest);
}

// The scale's sign puts the weight that is largest by magnitude on the longer side, -8.
inline void fit_symmetric(const float* x, std::int64_t size, float* scales) {
  Lanes extreme = load(x);
  for (std::int64_t i = 1; i < size; ++i) {
    const Lanes weight = load(x + i * kQuantizedGroups);
    extreme = where_less(magnitude(extreme), magnitude(weight), weight, extreme);
  }
  Best best;
  for (const double step : kSymmetricSteps) {
    const Lanes divisor = static_cast<float>(double{kSymmetricZeroPoint} + step);
    best.try_grid(x, size, inverse(-extreme / divisor), kSymmetricZeroPoint);
  }
  store(scales, best.scale);
}

inline void fit_zero_points(const float* x, std::int64_t size, float* scales, float* zero_points) {
  Lanes lowest = 0.0f, highest = 0.0f;
  for (std::int64_t i = 0; i < size; ++i) {
    const Lanes weight = load(x + i * kQuantizedGroups);
    lowest = min(weight, lowest);
    highest = max(weight, highest);
  }
  const Lanes spread = highest - lowest;
  Best best;
  for (const double step : kZeroPointSteps) {
    const Lanes steps = inverse(spread / static_cast<float>(double{kHighestCode} + step));
    // Both ends exceed the grid by the same number of steps.
    const Lanes zero = -lowest * steps - static_cast<float>(step / 2);
    best.try_grid(x, size, steps, round(clip(zero, 0.0f, kHighestCode)));
  }
  store(scales, best.scale);
  store(zero_points, best.zero_point);
}

inline void encode(const float* x, std::int64_t size, const CodeRanges& ranges,
                   std::uint8_t* codes) {
  const Lanes inverses = load(ranges.inverses), offsets = load(ranges.offsets);
  const Lanes lowest = load(ranges.lowest), highest = load(ranges.highest);
  for (std::int64_t i = 0; i < size * kQuantizedGroups; i += kQuantizedGroups) {
    float numbers[kQuantizedGroups];
    store(numbers, centered_codes(load(x + i), inverses, lowest, highest) + offsets);
    for (int lane = 0; lane < kQuantizedGroups; ++lane) {
      codes[i + lane] = static_cast<std::uint8_t>(static_cast<int>(numbers[lane]));
    }
  }
}

#undef PELLUCID_INLINE

constexpr QuantizeKernels kernels() {
  return {&largest, &fit_symmetric, &fit_zero_points, &encode};
}

}  // namespace quantize
}  // namespace
}  // namespace pellucid
