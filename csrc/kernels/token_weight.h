// The weight of a token: the arithmetic of execution/odds.py, for numbers and for vectors.
#pragma once

#include <cstdint>

namespace pellucid {
namespace {
namespace token_weight {

#define PELLUCID_INLINE inline __attribute__((always_inline))

constexpr float kMinExponent = -100.0f;  // a weight of 0
constexpr float kUnitsPerWeight = 0x1p30f;

// 2^exponent as (power, n) of power * 2^n, for kMinExponent <= exponent <= 0.
template <class Number>
PELLUCID_INLINE Number power_of_fraction(Number exponent, Number& whole) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
  whole = (exponent + kRound) - kRound;
  const Number fraction = exponent - whole;
  Number power = fraction * 0x1.5a5592p-10f + 0x1.3ce8bp-7f;
  power = power * fraction + 0x1.c6badp-5f;
  power = power * fraction + 0x1.ebf9c4p-3f;
  power = power * fraction + 0x1.62e426p-1f;
  return power * fraction + 1.0f;
}

inline float exponent_of(float logit, float peak, float sharpness) {
  const float exponent = (logit - peak) * sharpness;
  return exponent > kMinExponent ? exponent : kMinExponent;
}

inline float weight_of(float exponent) {
  if (exponent <= kMinExponent) return 0.0f;
  float whole;
  const float power = power_of_fraction(exponent, whole);
  const std::int32_t bits = (static_cast<std::int32_t>(whole) + 127) << 23;
  float factor;
  __builtin_memcpy(&factor, &bits, sizeof(factor));
  return power * factor;
}

// In units of 2^-30 of the peak's weight.
inline std::int64_t mass_of(float weight) {
  return static_cast<std::int64_t>(weight * kUnitsPerWeight + 0.5f);
}

#undef PELLUCID_INLINE

}  // namespace token_weight
}  // namespace
}  // namespace pellucid
