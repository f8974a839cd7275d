// Loads weights as operands of sums in floats. Each struct reads one format. A step is one load for
// every column of a vector; it yields kStepFactors operands of `multiply_add`, each of which covers
// kFactorInputs consecutive inputs.
#pragma once

#include <cstdint>

#include "../format.h"
#include "codebook.h"

namespace pellucid {
namespace {

// Loads the scales or minimums of a group, for the columns from `column` on. `stored` points to the
// [32] of the panel; `factors` points to theirs, if they have any.
template <class S, Format kFormat>
inline __attribute__((always_inline)) typename S::F32 load_scales(const std::uint8_t* stored,
                                                                  const std::uint8_t* factors,
                                                                  int column) {
  if constexpr (format_info(kFormat).scale == ScaleKind::kExponent) {
    constexpr std::int32_t kBias = 127;  // of a float's exponent
    return S::power_of_two(S::sub_i32(S::load_u8(stored + column), S::broadcast_i32(kBias)));
  } else if constexpr (has_factors(format_info(kFormat))) {
    return S::mul(S::to_f32(S::load_i8(stored + column)),
                  S::load_f16(reinterpret_cast<const std::uint16_t*>(factors) + column));
  } else {
    return S::load_f16(reinterpret_cast<const std::uint16_t*>(stored) + column);
  }
}

// Formats whose weights need no scale.
template <class S>
struct UnscaledWeights {
  using Factor = typename S::F32;
  using Input = float;
  static constexpr int kFactorInputs = 1;

  struct Scale {};
  static Scale load_scale(const std::uint8_t*, const std::uint8_t*, int) { return {}; }
  static Factor broadcast(const Input* x) { return S::broadcast(*x); }
  static typename S::F32 multiply_add(typename S::F32 sum, Factor w, Factor x) {
    return S::fma(w, x, sum);
  }
};

template <class S>
struct F32Weights : UnscaledWeights<S> {
  static constexpr Format kFormat = Format::kF32;
  static constexpr int kStepFactors = 1;

  static void load(const std::uint8_t* step, int column, const typename F32Weights::Scale&,
                   typename F32Weights::Factor (&factors)[kStepFactors]) {
    factors[0] = S::load(reinterpret_cast<const float*>(step) + column);
  }
};

template <class S>
struct F16Weights : UnscaledWeights<S> {
  static constexpr Format kFormat = Format::kF16;
  static constexpr int kStepFactors = 1;

  static void load(const std::uint8_t* step, int column, const typename F16Weights::Scale&,
                   typename F16Weights::Factor (&factors)[kStepFactors]) {
    factors[0] = S::load_f16(reinterpret_cast<const std::uint16_t*>(step) + column);
  }
};

// bf16 widened, for activations in f32.
template <class S>
struct BF16Weights : UnscaledWeights<S> {
  static constexpr Format kFormat = Format::kBF16;
  static constexpr int kStepFactors = 2;

  static void load(const std::uint8_t* step, int column, const typename BF16Weights::Scale&,
                   typename BF16Weights::Factor (&factors)[kStepFactors]) {
    const typename S::Pairs pairs = S::load_pairs(step + 4 * column);
    factors[0] = S::low_bf16(pairs);
    factors[1] = S::high_bf16(pairs);
  }
};

// bf16 as it is, two inputs at a time, for activations in bf16.
template <class S>
struct BF16Pairs {
  static constexpr Format kFormat = Format::kBF16;
  using Factor = typename S::Pairs;
  using Input = std::uint16_t;
  static constexpr int kStepFactors = 1;
  static constexpr int kFactorInputs = 2;

  struct Scale {};
  static Scale load_scale(const std::uint8_t*, const std::uint8_t*, int) { return {}; }
  static void load(const std::uint8_t* step, int column, const Scale&,
                   Factor (&factors)[kStepFactors]) {
    factors[0] = S::load_pairs(step + 4 * column);
  }
  static Factor broadcast(const Input* x) { return S::broadcast_pair(x); }
  static typename S::F32 multiply_add(typename S::F32 sum, Factor w, Factor x) {
    return S::dot_bf16(sum, w, x);
  }
};

// Dequantized integer weights. A code minus its zero point has at most 9 bits and an f16 scale 11,
// so the product is exact in f32; with f32 scales, or s8 times f16, it is rounded once.
template <class S, Format kIntegerFormat>
struct DequantizedWeights {
  static constexpr Format kFormat = kIntegerFormat;
  static constexpr FormatInfo kInfo = format_info(kFormat);
  using Factor = typename S::F32;
  using Input = float;
  // Codes with upper bits come a tile at a time.
  static constexpr int kStepFactors =
      has_upper_bits(kInfo) ? kInfo.tile_inputs : 32 / kInfo.weight_bits;
  static constexpr int kFactorInputs = 1;
  using Numbers = CodebookBytes<kInfo.codebook, true>;
  // The numbers of a codebook are bytes, like codes of 8 bits.
  static constexpr int kNumberBits =
      has_codebook(kInfo) || has_upper_bits(kInfo) ? 8 : kInfo.weight_bits;

  struct Scale {
    typename S::F32 scale;
    typename S::I32 zero_point;
    typename S::F32 minimum;
  };
  static Scale load_scale(const std::uint8_t* tile, const std::uint8_t* factors, int column) {
    Scale scale;
    if constexpr (has_group_scales(kInfo)) {
      scale.scale = load_scales<S, kFormat>(tile + tile_weight_bytes(kInfo), factors, column);
    } else {
      scale.scale = S::load(reinterpret_cast<const float*>(factors) + column);
    }
    if constexpr (kInfo.has_zero_points) {
      scale.zero_point = S::load_u8(tile + zero_points_at(kInfo) + column);
    } else {
      scale.zero_point =
          S::broadcast_i32(has_codebook(kInfo) ? Numbers::kZeroPoint : implied_zero_point(kInfo));
    }
    if constexpr (kInfo.has_minimums) {
      scale.minimum =
          load_scales<S, kFormat>(tile + minimums_at(kInfo), factors + 2 * kPanelOutputs, column);
    }
    return scale;
  }
  static void load(const std::uint8_t* step, int column, const Scale& scale,
                   Factor (&factors)[kStepFactors]) {
    const typename S::Quads quads = S::load_quads(step + 4 * column);
    if constexpr (has_upper_bits(kInfo)) {
      load_tile<0>(step + 4 * column, scale, factors);
    } else if constexpr (has_codebook(kInfo)) {
      load_quad<0>(S::look_up(Numbers::kTable, S::low_nibbles(quads)), scale, factors);
      load_quad<0>(S::look_up(Numbers::kTable, S::high_nibbles(quads)), scale, factors + 4);
    } else {
      load_quad<0>(quads, scale, factors);
      if constexpr (kInfo.weight_bits == 4) load_quad<4>(quads, scale, factors + 4);
    }
  }
  static Factor broadcast(const Input* x) { return S::broadcast(*x); }
  static typename S::F32 multiply_add(typename S::F32 sum, Factor w, Factor x) {
    return S::fma(w, x, sum);
  }

 private:
  // The codes of a tile with upper bits, from step kStep on.
  template <int kStep>
  static void load_tile(const std::uint8_t* tile, const Scale& scale, Factor* factors) {
    constexpr int kNumSteps = kInfo.tile_inputs / 8, kStepBytes = 4 * kPanelOutputs;
    constexpr int kUpperBits = kInfo.weight_bits - 4;
    if constexpr (kStep < kNumSteps) {
      const typename S::Quads both = S::load_quads(tile + kStep * kStepBytes);
      const typename S::Quads upper = S::load_quads(tile + kNumSteps * kStepBytes);
      constexpr int kFirst = 2 * kStep * kUpperBits;
      load_quad<0>(S::template add_upper_bits<kFirst, kUpperBits>(S::low_nibbles(both), upper),
                   scale, factors + 8 * kStep);
      load_quad<0>(
          S::template add_upper_bits<kFirst + kUpperBits, kUpperBits>(S::high_nibbles(both), upper),
          scale, factors + 8 * kStep + 4);
      load_tile<kStep + 1>(tile, scale, factors);
    }
  }

  // The codes at bit kShift of each byte of a quad.
  template <int kShift>
  static void load_quad(typename S::Quads quads, const Scale& scale, Factor* factors) {
    factors[0] = dequantize(S::template bits<kShift, kNumberBits>(quads), scale);
    factors[1] = dequantize(S::template bits<kShift + 8, kNumberBits>(quads), scale);
    factors[2] = dequantize(S::template bits<kShift + 16, kNumberBits>(quads), scale);
    factors[3] = dequantize(S::template bits<kShift + 24, kNumberBits>(quads), scale);
  }
  static Factor dequantize(typename S::I32 code, const Scale& scale) {
    const typename S::F32 centered = S::to_f32(S::sub_i32(code, scale.zero_point));
    if constexpr (kInfo.has_minimums) return S::fma(centered, scale.scale, scale.minimum);
    return S::mul(centered, scale.scale);
  }
};

}  // namespace
}  // namespace pellucid
