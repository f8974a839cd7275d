// Quantizes keys and values for an int8 or int4 KV cache.
#pragma once

#include <cstdint>

#include "int8_codes.h"

namespace pellucid {
namespace {

// Quantizes a group of a token's numbers to codes with one scale. Scales are stored as bf16. They
// are rounded away from zero before the codes are computed, so that codes fit the stored scale and
// stay within their bits. The scale is 0 for a group of zeros, and infinite for a group that is not
// finite: zero times infinity is NaN, which every result shows.
inline std::uint16_t scale_bits(float scale) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &scale, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0xffffu) >> 16);
}

inline float scale_of_bits(std::uint16_t bits) {
  return float_of_bits(static_cast<std::int32_t>(std::uint32_t{bits} << 16));
}

constexpr std::uint16_t kInfiniteScale = 0x7f80;

template <class S, int kBits>
struct KVQuantizer;

// scale = amax / 127, code = round(x / scale).
template <class S>
struct KVQuantizer<S, 8> {
  static std::uint16_t quantize(const float* x, std::int64_t size, std::int64_t padded,
                                std::int8_t* codes) {
    const std::int32_t bits = max_abs_bits<S>(x, size, padded);
    if (bits < kSmallestBits || bits >= kInfinityBits) {
      for (std::int64_t i = 0; i < padded; ++i) codes[i] = 0;
      return bits < kSmallestBits ? std::uint16_t{0} : kInfiniteScale;
    }
    const std::uint16_t scale = scale_bits(float_of_bits(bits) / 127.0f);
    round_to_codes<S>(x, size, padded, 1.0f / scale_of_bits(scale), codes);
    return scale;
  }
};

// The number with the largest magnitude gets the code -8, so that all 16 codes are used (as in
// GGUF's Q4_0).
template <class S>
struct KVQuantizer<S, 4> {
  static std::uint16_t quantize(const float* x, std::int64_t size, std::int64_t padded,
                                std::int8_t* codes) {
    constexpr float kSmallest = 0x1p-100f;  // below it 8 / amax would overflow
    __builtin_memset(codes, 0, static_cast<std::size_t>(padded));
    float extreme = 0.0f, amax = 0.0f;
    bool is_finite = true;
    for (std::int64_t i = 0; i < size; ++i) {
      const float magnitude = __builtin_fabsf(x[i]);
      is_finite = is_finite && magnitude <= __FLT_MAX__;
      if (magnitude > amax) {
        amax = magnitude;
        extreme = x[i];
      }
    }
    if (!is_finite) return kInfiniteScale;
    if (amax < kSmallest) return 0;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
    const std::uint16_t scale = scale_bits(extreme / -8.0f);
    const float inverse = 1.0f / scale_of_bits(scale);
    for (std::int64_t i = 0; i < size; ++i) {
      const float code = (x[i] * inverse + kRound) - kRound;
      codes[i] = static_cast<std::int8_t>(code > 7.0f ? 7.0f : code);
    }
    return scale;
  }
};

}  // namespace
}  // namespace pellucid
