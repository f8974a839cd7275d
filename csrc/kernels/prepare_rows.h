// Phase 1 of a linear layer: converts rows of x to the form that kernels of the weights' format
// read.
#pragma once

#include <cstdint>

#include "int8_codes.h"
#include "linear_kernels.h"

namespace pellucid {
namespace {

// A row whose maximum is below 2^-80 counts as zero. Above it, 127 / amax * 2^kMaxHalvings does not
// overflow, and the smallest scale of a group, amax / 127 * 2^-kMaxHalvings, is a normal float.
constexpr std::int32_t kSmallestRowBits = 0x17800000;

// Quantizes a row to s8 codes with one scale, which each group may halve, and divide by a power of
// the fourth root of two. In IEEE single precision, with max |x| of the row and of the group:
//     scale = row max / 127
//     halvings = the most, up to kMaxHalvings, with group max * 2^halvings <= row max
//     root = the largest of kRoots with group max * 2^halvings * root <= row max, 1 after
//            kMaxHalvings
//     code = round to nearest even(x * (127 / row max * 2^halvings * root))
// so that x is about scale / (2^halvings * root) * code. A row whose max is below 2^-80 counts as
// zero, and one with an infinity or a NaN gets the scale NaN, so that every output shows it.
// kZeroPoint is that of the weights' codes as the kernel's loads give them, 1 if columns have zero
// points of their own.
// Which of kRoots is the largest with max * root <= row_max.
inline int largest_root(float max, float row_max) {
  int root = 0;
  for (int i = 1; i < kNumRoots; ++i) root += max * kRoots[i] <= row_max;
  return root;
}

template <class S, Format kFormat, int kZeroPoint>
struct QuantizedRow {
  static constexpr FormatInfo kInfo = format_info(kFormat);

  const float* x;
  std::int64_t num_inputs;
  std::int64_t padded_inputs;  // those of whole tiles
  std::int8_t* groups;

  // Without group scales the row is one group.
  std::int64_t group_inputs() const {
    return has_group_scales(kInfo) ? kInfo.tile_inputs : padded_inputs;
  }
  std::int64_t num_groups() const { return padded_inputs / group_inputs(); }
  std::int8_t* codes(std::int64_t g) const {
    return groups + g * (group_inputs() + group_facts_bytes(kInfo));
  }
  GroupFacts& facts(std::int64_t g) const {
    return *reinterpret_cast<GroupFacts*>(codes(g) + group_inputs());
  }
  const float* inputs(std::int64_t g) const { return x + g * group_inputs(); }
  std::int64_t size(std::int64_t g) const {
    const std::int64_t rest = num_inputs - g * group_inputs();
    return rest < group_inputs() ? rest : group_inputs();
  }

  // Returns the scale of the row.
  float quantize() const {
    std::int32_t max_bits = 0;
    for (std::int64_t g = 0; g < num_groups(); ++g) {
      const std::int32_t bits = max_abs_bits<S>(inputs(g), size(g), group_inputs());
      facts(g).start = bits;  // for the second round
      if (bits > max_bits) max_bits = bits;
    }
    if (max_bits < kSmallestRowBits || max_bits >= kInfinityBits) {
      clear();
      return max_bits < kSmallestRowBits ? 0.0f : float_of_bits(kNaNBits);
    }
    const float row_max = float_of_bits(max_bits);
    const std::int32_t inverse_bits = bits_of_float(127.0f / row_max);
    for (std::int64_t g = 0; g < num_groups(); ++g) {
      // The difference of two floats' bits without the bits of the mantissa.
      const std::int32_t exponent = (max_bits - facts(g).start) >> kMantissaBits;
      const std::int32_t halvings = exponent < kMaxHalvings ? exponent : kMaxHalvings;
      const std::int32_t raise = halvings << kMantissaBits;
      const int root = halvings < kMaxHalvings
                           ? largest_root(float_of_bits(facts(g).start + raise), row_max)
                           : 0;
      const float inverse = float_of_bits(inverse_bits + raise) * kRoots[root];
      const std::int32_t sum =
          round_to_codes<S>(inputs(g), size(g), group_inputs(), inverse, codes(g));
      const float share = float_of_bits(kOneBits + (kMaxHalvings << kMantissaBits) - raise);
      set_facts(g, sum, root == 0 ? share : share / 2 * kRoots[kNumRoots - root]);
    }
    return row_max / 127.0f;
  }

  void clear() const {
    for (std::int64_t g = 0; g < num_groups(); ++g) {
      for (std::int64_t i = 0; i < group_inputs(); i += S::kLanes) {
        S::store_i8(codes(g) + i, S::zero_i32());
      }
      set_facts(g, 0, 1.0f);
    }
  }

  void set_facts(std::int64_t g, std::int32_t sum, float share) const {
    facts(g).start = -kZeroPoint * sum;
    facts(g).share = share;
    if constexpr (kInfo.has_minimums) facts(g).sum = static_cast<float>(sum) * share;
  }
};

// For integer formats.
template <class S, Format kFormat, int kZeroPoint>
void prepare_quantized(const PackedView& w, const float* x, std::int64_t x_stride,
                       std::int64_t row_begin, std::int64_t row_end, const PreparedRows& rows) {
  const std::int64_t padded_inputs = w.num_tiles * format_info(kFormat).tile_inputs;
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const QuantizedRow<S, kFormat, kZeroPoint> row{
        x + r * x_stride, w.num_inputs, padded_inputs,
        static_cast<std::int8_t*>(rows.values) + r * rows.stride};
    rows.scales[r] = row.quantize();
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
