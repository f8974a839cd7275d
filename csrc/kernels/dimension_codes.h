// Makes codes of 4 bits of a group's keys: each dimension has a scale and a minimum of its own for
// 32 positions. pellucid/backends/numpy/dimension_codes.py is the definition.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "int8_codes.h"
#include "kv_cells.h"
#include "kv_quantizer.h"
#include "lanes.h"

namespace pellucid {
namespace {

// Keys in bf16: [padded_dim / 2][16 tokens] pairs of dimensions.
constexpr std::int64_t kPairBytes = 4;
constexpr std::int64_t kPairStepBytes = kTileTokens * kPairBytes;

namespace dimension_codes {

using elementwise::Lanes;
using elementwise::WholeVector;

// bf16 [padded_dim]: scales in a group's first tile, minimums in its second.
inline const std::uint16_t* factors(const KVView& kv, const std::uint8_t* tile) {
  return key_scales(kv, tile);
}
inline std::uint16_t* factors(const KVView& kv, std::uint8_t* tile) { return key_scales(kv, tile); }

constexpr int kMostCode = 15;

// What keys of sixteen dimensions become; lanes are dimensions.
struct Factors {
  float scales[elementwise::kLanes];
  float inverses[elementwise::kLanes];  // 0: all codes are 0
  float minimums[elementwise::kLanes];
};

// x [32 positions], rows `stride` floats apart.
inline Factors factors_of(const float* x, std::int64_t stride) {
  Lanes least = WholeVector{0}(x), greatest = least, broken = least * 0.0f;
  for (int t = 1; t < kOpenTokens; ++t) {
    const Lanes keys = WholeVector{t * stride}(x);
    least = -elementwise::max(-keys, -least);
    greatest = elementwise::max(keys, greatest);
    broken += keys * 0.0f;  // NaN from the first infinity or NaN on
  }
  Factors result{};
  const Lanes spread = greatest - least + broken;
  for (int i = 0; i < elementwise::kLanes; ++i) {
    const std::int32_t bits = bits_of_float(spread[i]) & 0x7fffffff;
    result.minimums[i] = bits < kInfinityBits ? least[i] : float_of_bits(kNaNBits);
    if (bits < kSmallestBits || bits >= kInfinityBits) continue;
    result.scales[i] = scale_of_bits(scale_bits(spread[i] / static_cast<float>(kMostCode)));
    result.inverses[i] = 1.0f / result.scales[i];
  }
  return result;
}

// Codes [32 positions][16 dimensions] of x [32 positions, `stride` floats apart].
inline void round_to_codes(const float* x, std::int64_t stride, const Factors& of,
                           std::int8_t* codes, std::int64_t codes_stride) {
  typedef std::int8_t Codes __attribute__((vector_size(elementwise::kVectorLanes)));
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
  const Lanes minimums = WholeVector{0}(of.minimums), inverses = WholeVector{0}(of.inverses);
  for (int t = 0; t < kOpenTokens; ++t) {
    const Lanes steps = ((WholeVector{t * stride}(x)-minimums) * inverses + kRound) - kRound;
    const Lanes whole = elementwise::where_equal(inverses, 0.0f, 0.0f, steps);
#pragma GCC unroll 4
    for (int v = 0; v < elementwise::kVectors; ++v) {
      const auto numbers = __builtin_convertvector(whole.vectors[v], elementwise::IntVector);
      const Codes bytes = __builtin_convertvector(numbers, Codes);
      __builtin_memcpy(codes + t * codes_stride + v * elementwise::kVectorLanes, &bytes,
                       sizeof(bytes));
    }
  }
}

// Makes the codes, scales and minimums of a group's tiles of its keys in bf16.
inline void quantize(const KVView& kv, const std::uint8_t* keys, std::uint8_t* first_tile,
                     std::uint8_t* second_tile) {
  constexpr int kDims = elementwise::kLanes;
  alignas(64) float x[kOpenTokens][kDims];
  alignas(64) std::int8_t codes[kOpenTokens][kDims];
  for (std::int64_t d = 0; d < kv.padded_dim; d += kDims) {
    for (int t = 0; t < kOpenTokens; ++t) {
      const std::uint8_t* const cells = keys + t / kTileTokens * kv.open_tile_bytes +
                                        d / 2 * kPairStepBytes + t % kTileTokens * kPairBytes;
      for (int i = 0; i < kDims; i += 2) {
        std::uint16_t pair[2];
        __builtin_memcpy(pair, cells + i / 2 * kPairStepBytes, sizeof(pair));
        x[t][i] = scale_of_bits(pair[0]);
        x[t][i + 1] = scale_of_bits(pair[1]);
      }
    }
    const Factors of = factors_of(x[0], kDims);
    for (int i = 0; i < kDims; ++i) {
      factors(kv, first_tile)[d + i] = scale_bits(of.scales[i]);
      // Exact: a bf16.
      factors(kv, second_tile)[d + i] = static_cast<std::uint16_t>(
          static_cast<std::uint32_t>(bits_of_float(of.minimums[i])) >> 16);
    }
    round_to_codes(x[0], kDims, of, codes[0], kDims);
    for (int t = 0; t < kOpenTokens; ++t) {
      std::uint8_t* const tile = t < kTileTokens ? first_tile : second_tile;
      for (int i = 0; i < kDims; i += 8) {
        std::uint8_t cell[kCodeCellBytes];
        for (int j = 0; j < kCodeCellBytes; ++j) {
          cell[j] = static_cast<std::uint8_t>(codes[t][i + j] | codes[t][i + 4 + j] << 4);
        }
        __builtin_memcpy(
            tile + (d + i) / 8 * kTileTokens * kCodeCellBytes + t % kTileTokens * kCodeCellBytes,
            cell, sizeof(cell));
      }
    }
  }
}

}  // namespace dimension_codes
}  // namespace
}  // namespace pellucid
