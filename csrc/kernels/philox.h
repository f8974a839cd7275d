// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the random
// numbers of token noise. src/pellucid/execution/randomness.py defines which words a token uses.
#pragma once

#include <cstdint>

#include "lanes.h"
#include "sampling_kernels.h"
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace pellucid {
namespace {
namespace philox {

#define PELLUCID_INLINE inline __attribute__((always_inline))

using elementwise::kVectorLanes;

// As many bits as a vector of floats. A word is the lower half of a lane; the upper half is
// ignored.
typedef std::uint64_t Words __attribute__((vector_size(4 * kVectorLanes)));
typedef std::uint32_t Word32Vector __attribute__((vector_size(4 * kVectorLanes)));

constexpr std::uint32_t kMultipliers[2] = {0xD2511F53, 0xCD9E8D57};
constexpr std::uint32_t kKeySteps[2] = {0x9E3779B9, 0xBB67AE85};
constexpr int kNumRounds = 10;
constexpr int kNumWords = 4;  // of a block

PELLUCID_INLINE Words product(Words x, std::uint32_t factor) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(x), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(x), _mm256_set1_epi64x(factor)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(x), _mm_set1_epi64x(factor)));
#elif defined(__ARM_NEON)
  const uint32x2_t low = vmovn_u64(reinterpret_cast<uint64x2_t>(x));
  return reinterpret_cast<Words>(vmull_n_u32(low, factor));
#else
  return (x & 0xffffffffu) * factor;
#endif
}

PELLUCID_INLINE Words upper_half(Words x) {
#if defined(__AVX512F__)  // shuffles have a port of their own
  return reinterpret_cast<Words>(_mm512_movehdup_ps(reinterpret_cast<__m512>(x)));
#else
  return x >> 32;
#endif
}

// One word of as many blocks as a vector of floats has lanes: the blocks with even numbers, and
// those with odd numbers.
struct Pair {
  Words even;
  Words odd;

  PELLUCID_INLINE Word32Vector joined() const {
    return reinterpret_cast<Word32Vector>((even & 0xffffffffu) | odd << 32);
  }
};

// The words of blocks [first, first + kVectorLanes).
PELLUCID_INLINE void blocks(const NoiseKey& key, std::uint32_t first, Word32Vector* words) {
  Pair a{}, b{}, c{}, d{};
  for (int i = 0; i < kVectorLanes / 2; ++i) {
    a.even[i] = first + 2u * static_cast<unsigned>(i);
    a.odd[i] = first + 2u * static_cast<unsigned>(i) + 1;
  }
  b.even = b.odd = Words{} + std::uint64_t{key.position};
  c.even = c.odd = Words{} + std::uint64_t{key.stream};
  // d is 0: the upper halves
  std::uint32_t left = key.seed_low, right = key.seed_high;
#pragma GCC unroll 10
  for (int round = 0; round < kNumRounds; ++round) {
    const Words left_key = Words{} + std::uint64_t{left};
    const Words right_key = Words{} + std::uint64_t{right};
    const Pair first_product = {product(a.even, kMultipliers[0]), product(a.odd, kMultipliers[0])};
    const Pair second_product = {product(c.even, kMultipliers[1]), product(c.odd, kMultipliers[1])};
    a = {upper_half(second_product.even) ^ b.even ^ left_key,
         upper_half(second_product.odd) ^ b.odd ^ left_key};
    c = {upper_half(first_product.even) ^ d.even ^ right_key,
         upper_half(first_product.odd) ^ d.odd ^ right_key};
    b = second_product;
    d = first_product;
    left += kKeySteps[0];
    right += kKeySteps[1];
  }
  words[0] = a.joined();
  words[1] = b.joined();
  words[2] = c.joined();
  words[3] = d.joined();
}

#undef PELLUCID_INLINE

}  // namespace philox
}  // namespace
}  // namespace pellucid
