// Phase 1 of a linear: rows of x as the weights' format wants them.
#pragma once

#include <cstdint>

#include "linear_kernels.h"

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

constexpr std::int32_t kSmallestBits = 0x0d800000;  // 2^-100, as bits of a float
constexpr std::int32_t kInfinityBits = 0x7f800000;
constexpr std::int32_t kNaNBits = 0x7fc00000;

// Bits of max |x|: those of positive floats are ordered as the floats are, with infinity and then
// NaN on top. `padded` is a multiple of S::kLanes.
template <class S>
std::int32_t max_abs_bits(const float* x, std::int64_t size, std::int64_t padded) {
  typename S::I32 max_bits = S::zero_i32();
  for (std::int64_t i = 0; i < padded; i += S::kLanes) {
    max_bits = S::max_abs_bits(max_bits, load_padded<S>(x + i, size - i));
  }
  return S::reduce_max(max_bits);
}

// x [size] * inverse, rounded to nearest even, as s8 codes [padded], zero beyond size; their sum.
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

// x [size] as s8 codes [padded], zero beyond size, and the scale that they share. Symmetric, in
// IEEE single precision:
//     scale = amax / 127,  code = round to nearest even(x * (127 / amax)),  amax = max |x|.
// amax < 2^-100 counts as zero, where 127 / amax would overflow. A group with an infinity or a NaN
// gets the scale NaN, so that it is seen in every output.
// Returns the sum of the codes. `padded` is a multiple of S::kLanes.
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

// For integer formats. kZeroPoint is that of the codes as the kernel's loads give them, 1 if zero
// points differ from column to column.
template <class S, int kGroupInputs, int kZeroPoint>
void prepare_quantized(const PackedView& w, const float* x, std::int64_t x_stride,
                       std::int64_t row_begin, std::int64_t row_end, const PreparedRows& rows) {
  constexpr std::int64_t kLeastInputs = 32;  // what a row of one group is padded to a multiple of
  const std::int64_t padded_inputs =
      (w.num_inputs + kLeastInputs - 1) / kLeastInputs * kLeastInputs;
  const std::int64_t group = kGroupInputs > 0 ? kGroupInputs : padded_inputs;
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    std::int8_t* const codes = static_cast<std::int8_t*>(rows.values) + r * rows.stride;
    for (std::int64_t g = 0; g < rows.num_groups; ++g) {
      const std::int64_t at = g * group;
      const std::int64_t rest = w.num_inputs - at;
      const std::int32_t sum =
          quantize_group<S>(x + r * x_stride + at, rest < group ? rest : group, group, codes + at,
                            &rows.scales[r * rows.num_groups + g]);
      rows.starts[r * rows.num_groups + g] = -kZeroPoint * sum;
    }
  }
}

template <class S>
void prepare_bf16(const PackedView& w, const float* x, std::int64_t x_stride,
                  std::int64_t row_begin, std::int64_t row_end, const PreparedRows& rows) {
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    std::uint16_t* const values = static_cast<std::uint16_t*>(rows.values) + r * rows.stride;
    for (std::int64_t i = 0; i < rows.stride; i += S::kLanes) {
      S::store_bf16(values + i, load_padded<S>(x + r * x_stride + i, w.num_inputs - i));
    }
  }
}

template <class S>
void prepare_f32(const PackedView& w, const float* x, std::int64_t x_stride, std::int64_t row_begin,
                 std::int64_t row_end, const PreparedRows& rows) {
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    float* const values = static_cast<float*>(rows.values) + r * rows.stride;
    for (std::int64_t i = 0; i < rows.stride; i += S::kLanes) {
      S::store(values + i, load_padded<S>(x + r * x_stride + i, w.num_inputs - i));
    }
  }
}

}  // namespace
}  // namespace pellucid
