// Converts single numbers between f32 and the bits of f16 and bf16: for quantizing, packing and
// reading single rows.
#pragma once

#include <cstdint>
#include <cstring>

namespace pellucid {

inline float float_from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline float float_from_bf16(std::uint16_t bits) {
  return float_from_bits(std::uint32_t{bits} << 16);
}

// IEEE 754 binary16, subnormals, infinities and NaNs included.
inline float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (magnitude << 13));
  // With its exponent in the exponent field of a float, the number is too small by a factor of
  // 2^(127 - 15). Multiplying by this factor is exact, and makes subnormals normal.
  const float scaled = float_from_bits(magnitude << 13) * float_from_bits((127u + 112u) << 23);
  return sign != 0 ? -scaled : scaled;
}

// The nearest f16, ties to even; numbers that are too large become infinite. Not for NaNs.
inline std::uint16_t f16_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0x7c00u;
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to the bits of a subnormal
    const float shifted = float_from_bits(magnitude) + 0.5f;
    std::memcpy(&half, &shifted, sizeof(half));
    half -= 0x3f000000u;
  } else if (magnitude < 0x47800000u) {  // below 2^16
    half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace pellucid
