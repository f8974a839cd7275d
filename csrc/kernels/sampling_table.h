// The kernels that draw tokens (sampling_kernels.h), written once for all levels.
#pragma once

#include <cstdint>

#include "lanes.h"
#include "philox.h"
#include "sampling_kernels.h"
#include "token_noise.h"
#include "token_weight.h"

namespace pellucid {
namespace {
namespace sampling {

#define PELLUCID_INLINE inline __attribute__((always_inline))

using elementwise::IntVector;
using elementwise::kLanes;
using elementwise::kVectorLanes;
using elementwise::kVectors;
using elementwise::Vector;
using philox::Word32Vector;
using philox::Words;

constexpr float kInfinity = __builtin_inff();
constexpr int kCacheLineFloats = 16;
constexpr int kGroupsAhead = 4;

PELLUCID_INLINE Vector load(const float* p) {
  Vector x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}

PELLUCID_INLINE bool any(IntVector x) {
#if defined(__AVX512F__)
  const __m512i bits = reinterpret_cast<__m512i>(x);
  return _mm512_test_epi32_mask(bits, bits) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(reinterpret_cast<__m256>(x)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(reinterpret_cast<__m128>(x)) != 0;
#else
  const Words halves = reinterpret_cast<Words>(x);
  std::uint64_t all = 0;
  for (int i = 0; i < kVectorLanes / 2; ++i) all |= halves[i];
  return all != 0;
#endif
}

// The lanes whose bits, the lowest first, are set.
PELLUCID_INLINE IntVector lanes_of(std::uint32_t bits) {
  IntVector lane_bits{};
  for (int i = 0; i < kVectorLanes; ++i) lane_bits[i] = 1 << i;
  return ((IntVector{} + static_cast<std::int32_t>(bits)) & lane_bits) != 0;
}

// Calls f(first token, logits [kGroupTokens], bits of the allowed tokens or null) for each group of
// a row, in order. Logits beyond the end of the row are -infinity.
template <class F>
PELLUCID_INLINE void for_each_group(const Columns& columns, F&& f) {
  std::int64_t first = columns.begin;
  for (; first + kGroupTokens <= columns.end; first += kGroupTokens) {
    f(first, columns.logits + first,
      columns.allowed == nullptr ? nullptr : columns.allowed + first / 32);
  }
  if (first >= columns.end) return;
  float logits[kGroupTokens];
  std::uint32_t allowed[kGroupTokens / 32] = {};
  for (std::int64_t i = 0; i < kGroupTokens; ++i) {
    const bool is_inside = first + i < columns.end;
    logits[i] = is_inside ? columns.logits[first + i] : -kInfinity;
    if (is_inside && columns.allowed != nullptr) {
      allowed[i / 32] |= columns.allowed[(first + i) / 32] & 1u << i % 32;
    }
  }
  f(first, logits, columns.allowed == nullptr ? nullptr : allowed);
}

// Replaces the logits of tokens that take no part by -infinity, for kVectorLanes tokens, `offset`
// behind the first token of their group.
template <bool kFiltered>
PELLUCID_INLINE Vector logits_at(const Columns& columns, const float* logits,
                                 const std::uint32_t* allowed, int offset) {
  Vector own = load(logits + offset);
  if (!kFiltered) return own;
  const Vector none = Vector{} - kInfinity;
  if (columns.above != nullptr) own = own > load(columns.above + offset) ? own : none;
  if (allowed != nullptr) own = lanes_of(allowed[offset / 32] >> offset % 32) ? own : none;
  return own;
}

// 2^kMinExponent for those that count as 0.
PELLUCID_INLINE Vector weights_of(Vector logits, const Weighing& weighing) {
  Vector exponent = (logits - weighing.peak) * weighing.sharpness;
  const Vector least = Vector{} + token_weight::kMinExponent;
  exponent = exponent > least ? exponent : least;
  Vector whole;
  const Vector power = token_weight::power_of_fraction(exponent, whole);
  const IntVector bits = (__builtin_convertvector(whole, IntVector) + 127) << 23;
  return power * reinterpret_cast<Vector>(bits);
}

PELLUCID_INLINE IntVector masses_of(Vector weights) {
  return __builtin_convertvector(weights * token_weight::kUnitsPerWeight + 0.5f, IntVector);
}

PELLUCID_INLINE std::int64_t sum_of(Words words) {
  std::uint64_t sum = 0;
  for (int i = 0; i < kVectorLanes / 2; ++i) sum += words[i];
  return static_cast<std::int64_t>(sum);
}

// Adds masses, each at most 2^30, two by two.
PELLUCID_INLINE void add(IntVector a, IntVector b, Words& sums) {
  const Words pairs = reinterpret_cast<Words>(reinterpret_cast<Word32Vector>(a) +
                                              reinterpret_cast<Word32Vector>(b));
  sums += (pairs & 0xffffffffu) + (pairs >> 32);
}

inline float peak(const Columns& columns) {
  Vector peaks = Vector{} - kInfinity;
  for_each_group(columns, [&](std::int64_t, const float* logits, const std::uint32_t* allowed) {
    for (int offset = 0; offset < kGroupTokens; offset += kVectorLanes) {
      const Vector own = logits_at<true>(columns, logits, allowed, offset);
      peaks = own > peaks ? own : peaks;
    }
  });
  float peak = -kInfinity;
  for (int i = 0; i < kVectorLanes; ++i) peak = peaks[i] > peak ? peaks[i] : peak;
  return peak;
}

inline std::int64_t mass(const Columns& columns) {
  const Vector none = Vector{} - kInfinity;
  Words sums{};
  for_each_group(
      columns, [&](std::int64_t begin, const float* logits, const std::uint32_t* allowed) {
        IntVector take_part[kGroupTokens / kVectorLanes], some{};
#pragma GCC unroll 32
        for (int i = 0; i < kGroupTokens / kVectorLanes; ++i) {
          take_part[i] = logits_at<true>(columns, logits, allowed, i * kVectorLanes) > none;
          some |= take_part[i];
        }
        if (!any(some)) return;  // most groups, if few tokens have most of the mass
        const float* const weights = columns.weights + begin;
#pragma GCC unroll 32
        for (int i = 0; i < kGroupTokens / kVectorLanes; i += 2) {
          add(masses_of(load(weights + i * kVectorLanes)) & take_part[i],
              masses_of(load(weights + (i + 1) * kVectorLanes)) & take_part[i + 1], sums);
        }
      });
  return sum_of(sums);
}

// Fetches the logits of a group. Hardware stops at the end of a page, which eight groups fill.
PELLUCID_INLINE void prefetch(const float* logits) {
#pragma GCC unroll 8
  for (int i = 0; i < kGroupTokens; i += kCacheLineFloats) __builtin_prefetch(logits + i);
}

template <bool kFiltered>
PELLUCID_INLINE std::int64_t race(const Columns& columns, const Weighing& weighing,
                                  float min_weight, const NoiseKey& key, Arrival& first) {
  // A token with the weight 2^kMinExponent never arrives.
  const float least = min_weight > 0x1.000002p-100f ? min_weight : 0x1.000002p-100f;
  float latest = noise::latest(first.time);
  Words sums{};
  for_each_group(
      columns, [&](std::int64_t begin, const float* logits, const std::uint32_t* allowed) {
        float* const weights = columns.weights + begin;
        constexpr int kHalf = kGroupTokens / 2;
        std::uint32_t noises[kHalf];
        prefetch(logits + kGroupsAhead * kGroupTokens);
        IntVector some{};
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
          Word32Vector words[philox::kNumWords];
          philox::blocks(key, static_cast<std::uint32_t>(begin / 8 + i * kVectorLanes), words);
#pragma GCC unroll 4
          for (int word = 0; word < philox::kNumWords; ++word) {
            const int offset = word * kLanes + i * kVectorLanes;
            const Vector low =
                weights_of(logits_at<kFiltered>(columns, logits, allowed, offset), weighing);
            const Vector high = weights_of(
                logits_at<kFiltered>(columns, logits, allowed, offset + kHalf), weighing);
            add(masses_of(low), masses_of(high), sums);
            const Vector low_bits =
                __builtin_convertvector(reinterpret_cast<IntVector>(words[word] & 0xffffu), Vector);
            const Vector high_bits =
                __builtin_convertvector(reinterpret_cast<IntVector>(words[word] >> 16), Vector);
            some |= (low_bits <= low * latest) | (high_bits <= high * latest);
            __builtin_memcpy(weights + offset, &low, sizeof(low));
            __builtin_memcpy(weights + offset + kHalf, &high, sizeof(high));
            __builtin_memcpy(noises + offset, &words[word], sizeof(low));
          }
        }
        if (!any(some)) return;
        for (int i = 0; i < kGroupTokens; ++i) {
          const std::uint32_t upper_bits = i < kHalf ? noises[i] & 0xffff : noises[i - kHalf] >> 16;
          if (weights[i] >= least && noise::may_arrive(upper_bits, weights[i], latest)) {
            noise::race(key, begin + i, upper_bits, weights[i], first);
            latest = noise::latest(first.time);
          }
        }
      });
  return sum_of(sums);
}

inline std::int64_t race(const Columns& columns, const Weighing& weighing, float min_weight,
                         const NoiseKey& key, Arrival& first) {
  const bool is_filtered = columns.allowed != nullptr || columns.above != nullptr;
  return is_filtered ? race<true>(columns, weighing, min_weight, key, first)
                     : race<false>(columns, weighing, min_weight, key, first);
}

constexpr SamplingKernels kernels() { return {&peak, &race, &mass}; }

#undef PELLUCID_INLINE

}  // namespace sampling
}  // namespace
}  // namespace pellucid
