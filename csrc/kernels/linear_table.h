// The table of linear kernels for one type of vectors.
#pragma once

#include "float_tile.h"
#include "linear_kernels.h"
#include "prepare_rows.h"
#include "quantized_tile.h"

namespace pellucid {
namespace {

template <class S, Format kFormat>
constexpr LinearKernel group_kernel() {
  using Tile = GroupTile<S, kFormat>;
  return {&prepare_quantized<S, kFormat, Tile::kZeroPoint>, &compute_panels<Tile>};
}

template <class S>
constexpr LinearKernel channel_kernel() {
  return {&prepare_quantized<S, Format::kInt8Channel, Codes8<S>::kZeroPoint>,
          &compute_panels<ChannelTile<S>>};
}

template <class S, class Weights>
constexpr LinearKernel f32_kernel() {
  return {&prepare_f32<S>, &compute_panels<FloatTile<S, Weights>>};
}

template <class S, Format kFormat>
constexpr LinearKernel dequantizing_kernel() {
  return f32_kernel<S, DequantizedWeights<S, kFormat>>();
}

// In the order of Format and Activations.
template <class S>
constexpr LinearKernels linear_kernels() {
  constexpr LinearKernel kF32 = f32_kernel<S, F32Weights<S>>();
  constexpr LinearKernel kF16 = f32_kernel<S, F16Weights<S>>();
  constexpr LinearKernel kBF16 = {&prepare_bf16<S>, &compute_panels<FloatTile<S, BF16Pairs<S>>>};
  return {{
      {kF32, kF32},
      {kF16, kF16},
      {kBF16, f32_kernel<S, BF16Weights<S>>()},
      {group_kernel<S, Format::kInt8>(), dequantizing_kernel<S, Format::kInt8>()},
      {channel_kernel<S>(), dequantizing_kernel<S, Format::kInt8Channel>()},
      {group_kernel<S, Format::kInt4>(), dequantizing_kernel<S, Format::kInt4>()},
      {group_kernel<S, Format::kInt4G128>(), dequantizing_kernel<S, Format::kInt4G128>()},
      {group_kernel<S, Format::kInt4Zp>(), dequantizing_kernel<S, Format::kInt4Zp>()},
      {group_kernel<S, Format::kInt4G128Zp>(), dequantizing_kernel<S, Format::kInt4G128Zp>()},
      {group_kernel<S, Format::kInt8Min>(), dequantizing_kernel<S, Format::kInt8Min>()},
      {group_kernel<S, Format::kInt4Min>(), dequantizing_kernel<S, Format::kInt4Min>()},
      {group_kernel<S, Format::kInt5K>(), dequantizing_kernel<S, Format::kInt5K>()},
      {group_kernel<S, Format::kInt4K>(), dequantizing_kernel<S, Format::kInt4K>()},
      {group_kernel<S, Format::kInt6K16>(), dequantizing_kernel<S, Format::kInt6K16>()},
      {group_kernel<S, Format::kInt4K16>(), dequantizing_kernel<S, Format::kInt4K16>()},
      {group_kernel<S, Format::kMxfp4>(), dequantizing_kernel<S, Format::kMxfp4>()},
      {group_kernel<S, Format::kIq4Nl>(), dequantizing_kernel<S, Format::kIq4Nl>()},
      {group_kernel<S, Format::kIq4Xs>(), dequantizing_kernel<S, Format::kIq4Xs>()},
      {group_kernel<S, Format::kNf4>(), dequantizing_kernel<S, Format::kNf4>()},
      {group_kernel<S, Format::kInt4G64>(), dequantizing_kernel<S, Format::kInt4G64>()},
      {group_kernel<S, Format::kInt4G64Zp>(), dequantizing_kernel<S, Format::kInt4G64Zp>()},
      {group_kernel<S, Format::kInt4S16>(), dequantizing_kernel<S, Format::kInt4S16>()},
  }};
}

}  // namespace
}  // namespace pellucid
