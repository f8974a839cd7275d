// Half precision as bits, one number at a time: for packing and reading single rows.
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
  // Placed in the exponent field of a float the number is too small by 2^(127 - 15); multiplying is
  // exact and makes subnormals normal.
  const float scaled = float_from_bits(magnitude << 13) * float_from_bits((127u + 112u) << 23);
  return sign != 0 ? -scaled : scaled;
}

}  // namespace pellucid
