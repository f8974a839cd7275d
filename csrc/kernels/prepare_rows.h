// Phase 1 of a linear: rows of x as the weights' format wants them.
#pragma once

#include <cstdint>

#include "int8_codes.h"
#include "linear_kernels.h"

namespace pellucid {
namespace {

// Below 2^-80 a row counts as zero: neither of 127 / amax, doubled as often as a group may ask for,
// and of the least scale of a group, amax / 127 * 2^-kMaxHalvings, leaves the normal floats.
constexpr std::int32_t kSmallestRowBits = 0x17800000;

// A row that is zero, or whose every output is to be NaN.
inline void prepare_constant(std::int64_t row, std::int64_t num_codes, float scale,
                             const PreparedRows& rows) {
  std::int8_t* const codes = static_cast<std::int8_t*>(rows.values) + row * rows.stride;
  __builtin_memset(codes, 0, static_cast<std::size_t>(num_codes));
  for (std::int64_t i = row * rows.num_groups; i < (row + 1) * rows.num_groups; ++i) {
    rows.raises[i] = 0;
    rows.starts[i] = 0;
    if (rows.sums != nullptr) rows.sums[i] = 0.0f;
  }
  rows.scales[row] = scale;
}

// For integer formats: s8 codes and a scale per row, which a group may halve. In IEEE single
// precision, with max |x| of the row and of the group,
//     scale = row max / 127
//     halvings = the most, up to kMaxHalvings, with group max * 2^halvings <= row max
//     code = round to nearest even(x * (127 / row max * 2^halvings))
// so that x is about scale * 2^-halvings * code. A row whose max is below 2^-80 counts as zero, and
// one with an infinity or a NaN gets the scale NaN, so that it is seen in every output.
// kZeroPoint is that of the weights' codes as the kernel's loads give them, 1 if zero points differ
// from column to column.
template <class S, int kGroupInputs, int kZeroPoint>
void prepare_quantized(const PackedView& w, const float* x, std::int64_t x_stride,
                       std::int64_t row_begin, std::int64_t row_end, const PreparedRows& rows) {
  constexpr std::int64_t kLeastInputs = 32;  // what a row of one group is padded to a multiple of
  const std::int64_t padded_inputs =
      (w.num_inputs + kLeastInputs - 1) / kLeastInputs * kLeastInputs;
  const std::int64_t group = kGroupInputs > 0 ? kGroupInputs : padded_inputs;
  const auto group_size = [&](std::int64_t g) {
    const std::int64_t rest = w.num_inputs - g * group;
    return rest < group ? rest : group;
  };
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const float* const x_row = x + r * x_stride;
    std::int8_t* const codes = static_cast<std::int8_t*>(rows.values) + r * rows.stride;
    std::int32_t* const raises = rows.raises + r * rows.num_groups;  // at first max |x| as bits
    std::int32_t max_bits = 0;
    for (std::int64_t g = 0; g < rows.num_groups; ++g) {
      raises[g] = max_abs_bits<S>(x_row + g * group, group_size(g), group);
      if (raises[g] > max_bits) max_bits = raises[g];
    }
    if (max_bits < kSmallestRowBits || max_bits >= kInfinityBits) {
      const float scale = max_bits < kSmallestRowBits ? 0.0f : float_of_bits(kNaNBits);
      prepare_constant(r, rows.num_groups * group, scale, rows);
      continue;
    }
    const float row_max = float_of_bits(max_bits);
    const std::int32_t inverse_bits = bits_of_float(127.0f / row_max);
    rows.scales[r] = row_max / 127.0f;
    for (std::int64_t g = 0; g < rows.num_groups; ++g) {
      // Of the difference of two floats as bits, what is above the mantissa.
      const std::int32_t quotient = (max_bits - raises[g]) >> kMantissaBits;
      const std::int32_t halvings = quotient < kMaxHalvings ? quotient : kMaxHalvings;
      const float inverse = float_of_bits(inverse_bits + (halvings << kMantissaBits));
      const std::int32_t sum =
          round_to_codes<S>(x_row + g * group, group_size(g), group, inverse, codes + g * group);
      raises[g] = (kMaxHalvings - halvings) << kMantissaBits;
      rows.starts[r * rows.num_groups + g] = -kZeroPoint * sum;
      if (rows.sums != nullptr) {
        rows.sums[r * rows.num_groups + g] =
            static_cast<float>(sum) * float_of_bits(kOneBits + raises[g]);
      }
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
