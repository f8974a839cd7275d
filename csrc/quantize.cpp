// Quantizes weight matrices to int8 and int4.
#include "quantize.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "float_bits.h"
#include "rounding.h"

namespace pellucid {
namespace {

constexpr float kLargestInt8 = 127.0f;
constexpr float kSymmetricZeroPoint = 8.0f;
constexpr float kHighestInt4 = 15.0f;
constexpr float kSmallestScale = 0x1p-125f;  // below, a float has no inverse

template <class T>
T load_at(const void* numbers, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(numbers) + index * std::int64_t{sizeof(T)},
              sizeof(T));
  return value;
}

// Loads the weights [from, from + count) as one column of [count][16].
void load_column(const FloatMatrixView& matrix, std::int64_t from, std::int64_t count,
                 float* column) {
  const auto fill = [&](auto number) {
    for (std::int64_t i = 0; i < count; ++i) column[i * kQuantizedGroups] = number(from + i);
  };
  switch (matrix.format) {
    case Format::kF16:
      return fill([&](std::int64_t i) {
        return float_from_f16(load_at<std::uint16_t>(matrix.weights, i));
      });
    case Format::kBF16:
      return fill([&](std::int64_t i) {
        return float_from_bf16(load_at<std::uint16_t>(matrix.weights, i));
      });
    default:
      return fill([&](std::int64_t i) { return load_at<float>(matrix.weights, i); });
  }
}

// Stores the codes of one group, a column of [count][16], in the group's row.
void store_codes(const FormatInfo& info, const std::uint8_t* column, std::int64_t count,
                 std::uint8_t* codes) {
  if (info.weight_bits == 8) {
    for (std::int64_t i = 0; i < count; ++i) codes[i] = column[i * kQuantizedGroups];
    return;
  }
  for (std::int64_t i = 0; i < count; i += 2) {  // of an odd count, the last high half is 0
    const int high = i + 1 < count ? column[(i + 1) * kQuantizedGroups] : 0;
    codes[i / 2] = static_cast<std::uint8_t>(column[i * kQuantizedGroups] | high << 4);
  }
}

// The scale of codes of 8 bits, from the largest weight. It is rounded up: tiny f16 are coarse, and
// with a scale below the exact value the largest weight could be out of range.
std::uint16_t f16_at_least(float exact) {
  const std::uint16_t nearest = f16_bits(exact);
  const bool is_below = float_from_f16(nearest) < exact;
  return is_below ? static_cast<std::uint16_t>(nearest + 1) : nearest;
}

float inverse_of(float scale) { return std::fabs(scale) > kSmallestScale ? 1.0f / scale : 0.0f; }

}  // namespace

MatrixQuantizer::Groups::Groups(const FloatMatrixView& matrix, const FormatInfo& info)
    : size(has_group_scales(info) ? info.tile_inputs : matrix.num_inputs),
      per_row(ceil_div(matrix.num_inputs, size)),
      count(matrix.num_outputs * per_row) {}

MatrixQuantizer::MatrixQuantizer(const KernelTable& kernels, const FloatMatrixView& matrix,
                                 Format format, const WeightTarget& target)
    : kernels_(kernels.quantize),
      matrix_(matrix),
      info_(format_info(format)),
      target_(target),
      groups_(matrix, info_),
      row_bytes_(ceil_div(matrix.num_inputs * info_.weight_bits, 8)),
      weights_(static_cast<std::size_t>(groups_.size * kQuantizedGroups)),
      codes_(weights_.size()) {
  assert(info_.is_integer && !info_.has_minimums);
}

std::int64_t MatrixQuantizer::num_pieces() const {
  return ceil_div(groups_.count, kQuantizedGroups);
}

void MatrixQuantizer::run(std::int64_t piece_begin, std::int64_t piece_end) {
  for (std::int64_t piece = piece_begin; piece < piece_end; ++piece) {
    const std::int64_t first = piece * kQuantizedGroups;
    const std::int64_t count = std::min<std::int64_t>(kQuantizedGroups, groups_.count - first);
    load(first, count);
    CodeRanges ranges{};
    if (info_.weight_bits == 8) {
      fit_int8(first, count, ranges);
    } else {
      fit_int4(first, count, ranges);
    }
    kernels_.encode(weights_.data(), groups_.size, ranges, codes_.data());
    for (std::int64_t lane = 0; lane < count; ++lane) {
      const std::int64_t group = first + lane, begin = groups_.begin(group);
      auto* const row =
          static_cast<std::uint8_t*>(target_.weights) + groups_.row(group) * row_bytes_;
      store_codes(info_, codes_.data() + lane, inputs_of(group),
                  row + begin * info_.weight_bits / 8);
    }
  }
}

std::int64_t MatrixQuantizer::inputs_of(std::int64_t group) const {
  return std::min(groups_.size, matrix_.num_inputs - groups_.begin(group));
}

// Loads the groups [first, first + count) as columns, zero beyond the end of a row.
void MatrixQuantizer::load(std::int64_t first, std::int64_t count) {
  std::fill(weights_.begin(), weights_.end(), 0.0f);
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const std::int64_t group = first + lane;
    load_column(matrix_, groups_.row(group) * matrix_.num_inputs + groups_.begin(group),
                inputs_of(group), weights_.data() + lane);
  }
}

void MatrixQuantizer::fit_int8(std::int64_t first, std::int64_t count, CodeRanges& ranges) const {
  float largest[kQuantizedGroups];
  kernels_.largest(weights_.data(), groups_.size, largest);
  for (std::int64_t lane = 0; lane < count; ++lane) {
    float scale = largest[lane] / kLargestInt8;
    if (has_channel_scales(info_)) {
      static_cast<float*>(target_.scales)[first + lane] = scale;
    } else {
      const std::uint16_t bits = f16_at_least(scale);
      static_cast<std::uint16_t*>(target_.scales)[first + lane] = bits;
      scale = float_from_f16(bits);
    }
    ranges.inverses[lane] = inverse_of(scale);
    ranges.lowest[lane] = -kLargestInt8;
    ranges.highest[lane] = kLargestInt8;
  }
}

void MatrixQuantizer::fit_int4(std::int64_t first, std::int64_t count, CodeRanges& ranges) const {
  float scales[kQuantizedGroups], zero_points[kQuantizedGroups];
  if (info_.has_zero_points) {
    kernels_.fit_zero_points(weights_.data(), groups_.size, scales, zero_points);
  } else {
    kernels_.fit_symmetric(weights_.data(), groups_.size, scales);
    std::fill_n(zero_points, kQuantizedGroups, kSymmetricZeroPoint);
  }
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const std::uint16_t bits = f16_bits(scales[lane]);
    // Zero has no sign.
    static_cast<std::uint16_t*>(target_.scales)[first + lane] = bits == 0x8000u ? 0 : bits;
    if (info_.has_zero_points) {
      target_.zero_points[first + lane] = static_cast<std::uint8_t>(zero_points[lane]);
    }
    ranges.inverses[lane] = inverse_of(float_from_f16(bits));
    ranges.lowest[lane] = -zero_points[lane];
    ranges.highest[lane] = kHighestInt4 - zero_points[lane];
    ranges.offsets[lane] = zero_points[lane];
  }
}

}  // namespace pellucid
