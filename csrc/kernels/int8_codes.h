// Quantizes numbers to codes of 8 bits that share a scale: activations, queries, keys and values.
#pragma once

#include <cstdint>

namespace pellucid {
namespace {

template <class S>
typename S::F32 load_padded(const float* x, std::int64_t count) {
  if (count >= S::kLanes) return S::load(x);
  return count > 0 ? S::load_first(x, count) : S::zero();
}

inline float float_of_bits(std::int32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

inline std::int32_t bits_of_float(float x) {
  std::int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Floats as bits.
constexpr std::int32_t kSmallestBits = 0x0d800000;  // 2^-100
constexpr std::int32_t kInfinityBits = 0x7f800000;
constexpr std::int32_t kNaNBits = 0x7fc00000;

// The bits of max |x|. Bits of positive floats have the order of the floats; infinity and then NaN
// are the greatest. `padded` is a multiple of S::kLanes.
template <class S>
std::int32_t max_abs_bits(const float* x, std::int64_t size, std::int64_t padded) {
  typename S::I32 max_bits = S::zero_i32();
  for (std::int64_t i = 0; i < padded; i += S::kLanes) {
    max_bits = S::max_abs_bits(max_bits, load_padded<S>(x + i, size - i));
  }
  return S::reduce_max(max_bits);
}

// Writes x [size] * inverse, rounded to nearest even, as s8 codes [padded], zero beyond size.
// Returns the sum of the codes.
template <class S>
std::int32_t round_to_codes(const float* x, std::int64_t size, std::int64_t padded, float inverse,
                            std::int8_t* codes) {
  const typename S::F32 factor = S::broadcast(inverse);
  typename S::I32 sum = S::zero_i32();
  for (std::int64_t i = 0; i < padded; i += S::kLanes) {
    const typename S::I32 rounded = S::round(S::mul(load_padded<S>(x + i, size - i), factor));
    S::store_i8(codes + i, rounded);
    sum = S::add_i32(sum, rounded);
  }
  return S::reduce_add(sum);
}

// Quantizes x [size] to s8 codes [padded], zero beyond size, with one scale. Symmetric, in IEEE
// single precision:
//     scale = amax / 127,  code = round to nearest even(x * (127 / amax)),  amax = max |x|.
// amax < 2^-100, where 127 / amax would overflow, counts as zero. A group with an infinity or a NaN
// gets the scale NaN, so that every output shows it. Returns the sum of the codes. `padded` is a
// multiple of S::kLanes.
template <class S>
std::int32_t quantize_group(const float* x, std::int64_t size, std::int64_t padded,
                            std::int8_t* codes, float* scale) {
  const std::int32_t bits = max_abs_bits<S>(x, size, padded);
  if (bits < kSmallestBits || bits >= kInfinityBits) {
    *scale = bits < kSmallestBits ? 0.0f : float_of_bits(kNaNBits);
    __builtin_memset(codes, 0, static_cast<std::size_t>(padded));
    return 0;
  }
  const float amax = float_of_bits(bits);
  *scale = amax / 127.0f;
  return round_to_codes<S>(x, size, padded, 127.0f / amax, codes);
}

}  // namespace
}  // namespace pellucid
