// Phase 1 of a linear layer: converts rows of x to the form that kernels of the weights' format
// read.
#pragma once

#include <cstdint>

#include "int8_codes.h"
#include "linear_kernels.h"

namespace pellucid {
namespace {

// For integer formats: quantizes each group to s8 codes with a scale of its own (quantize_group).
// Without group scales the row is one group. kZeroPoint is that of the weights' codes as the
// kernel's loads give them, 1 if columns have zero points of their own.
template <class S, Format kFormat, int kZeroPoint>
void prepare_quantized(const PackedView& w, const float* x, std::int64_t x_stride,
                       std::int64_t row_begin, std::int64_t row_end, const PreparedRows& rows) {
  constexpr FormatInfo kInfo = format_info(kFormat);
  const std::int64_t padded_inputs = w.num_tiles * kInfo.tile_inputs;
  const std::int64_t group_inputs = has_group_scales(kInfo) ? kInfo.tile_inputs : padded_inputs;
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const float* const row = x + r * x_stride;
    std::int8_t* codes = static_cast<std::int8_t*>(rows.values) + r * rows.stride;
    for (std::int64_t first = 0; first < padded_inputs; first += group_inputs) {
      const std::int64_t rest = w.num_inputs - first;
      auto& facts = *reinterpret_cast<GroupFacts*>(codes + group_inputs);
      const std::int32_t sum =
          quantize_group<S>(row + first, rest < group_inputs ? rest : group_inputs, group_inputs,
                            codes, &facts.scale);
      facts.start = -kZeroPoint * sum;
      if constexpr (kInfo.has_minimums) facts.sum = static_cast<float>(sum) * facts.scale;
      codes += group_inputs + group_facts_bytes(kInfo);
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
