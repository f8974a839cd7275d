// Quantizes keys and values for an int8 or int4 KV cache.
#pragma once

#include <cstdint>

#include "attention_kernels.h"
#include "int8_codes.h"
#include "lanes.h"
#include "softmax.h"

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

// The number with the largest magnitude gets a code near -8, so that all 16 codes are used (as in
// GGUF's Q4_0). Of nine scales that do that, the one whose codes have the smallest squared error;
// the first of equals.
template <class S>
struct KVQuantizer<S, 4> {
  // Codes [kKVGroupDims] of x [kKVGroupDims].
  static std::uint16_t quantize(const float* x, std::int8_t* codes) {
    std::int32_t most = 0;  // bits of the greatest magnitude
    for (int i = 0; i < kKVGroupDims; ++i) {
      const std::int32_t bits = bits_of_float(x[i]) & kMagnitudeBits;
      most = bits > most ? bits : most;
    }
    if (most < kSmallestBits || most >= kInfinityBits) {
      __builtin_memset(codes, 0, kKVGroupDims);
      return most < kSmallestBits ? std::uint16_t{0} : kInfiniteScale;
    }
    float extreme = float_of_bits(most);
    for (int i = 0; i < kKVGroupDims; ++i) {
      if (__builtin_fabsf(x[i]) == extreme) {
        extreme = x[i];
        break;
      }
    }
    const Candidates candidates(extreme);
    float errors[kNumCandidates];
    for (int i = 0; i < kNumCandidates; ++i) {
      errors[i] = squared_error(x, candidates.scales[i], candidates.inverses[i]);
    }
    int best = 0;
    for (int i = 1; i < kNumCandidates; ++i) best = errors[i] < errors[best] ? i : best;
    for (int i = 0; i < kKVGroupDims; i += elementwise::kLanes) {
      store_codes(rounded_codes(elementwise::WholeVector{i}(x), candidates.inverses[best]),
                  codes + i);
    }
    return scale_bits(candidates.scales[best]);
  }

 private:
  using Lanes = elementwise::Lanes;
  static_assert(kKVGroupDims == 2 * elementwise::kLanes);
  static constexpr std::int32_t kMagnitudeBits = 0x7fffffff;
  static constexpr int kNumCandidates = 9;

  struct Candidates {
    explicit Candidates(float extreme) {
      // What the extreme's code would be, if it were not rounded; the rest fills a vector.
      constexpr float kCodes[elementwise::kLanes] = {-8.0f,  -7.75f, -8.25f, -7.5f, -8.5f, -7.25f,
                                                     -8.75f, -7.0f,  -9.0f,  -8.0f, -8.0f, -8.0f,
                                                     -8.0f,  -8.0f,  -8.0f,  -8.0f};
      for (int i = 0; i < elementwise::kLanes; ++i) {
        scales[i] = scale_of_bits(scale_bits(extreme / kCodes[i]));
        inverses[i] = 1.0f / scales[i];
      }
    }

    float scales[elementwise::kLanes];
    float inverses[elementwise::kLanes];
  };

  static inline __attribute__((always_inline)) Lanes rounded_codes(Lanes x, Lanes inverse) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for fractions
    const Lanes code = elementwise::max((x * inverse + kRound) - kRound, -8.0f);
    return elementwise::where_less(code, 7.0f, code, 7.0f);
  }

  static inline __attribute__((always_inline)) void store_codes(Lanes rounded, std::int8_t* codes) {
    typedef std::int8_t Codes __attribute__((vector_size(elementwise::kVectorLanes)));
#pragma GCC unroll 4
    for (int v = 0; v < elementwise::kVectors; ++v) {
      const auto numbers = __builtin_convertvector(rounded.vectors[v], elementwise::IntVector);
      const Codes bytes = __builtin_convertvector(numbers, Codes);
      __builtin_memcpy(codes + v * elementwise::kVectorLanes, &bytes, sizeof(bytes));
    }
  }

  static inline __attribute__((always_inline)) Lanes squares(const float* x, float scale,
                                                             float inverse) {
    const Lanes numbers = elementwise::WholeVector{0}(x);
    const Lanes off = rounded_codes(numbers, inverse) * scale - numbers;
    return off * off;
  }

  static inline __attribute__((always_inline)) float squared_error(const float* x, float scale,
                                                                   float inverse) {
    return softmax::sum(squares(x, scale, inverse) +
                        squares(x + elementwise::kLanes, scale, inverse));
  }
};

}  // namespace
}  // namespace pellucid
