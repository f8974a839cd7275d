// The vectors of kernels with AVX2, FMA and F16C: 256 bits. simd_portable.h defines each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "codebook.h"

namespace pellucid {
namespace {

struct Simd {
  static constexpr int kLanes = 8;

  using F32 = __m256;
  using I32 = __m256i;
  using Quads = __m256i;
  using Pairs = __m256i;

  // The instruction for u8 x s8 saturates sums of two products of 8 bits, see dot().
  static constexpr bool kHasSignedCodes = true;

  static constexpr int quantized_vectors(int rows) { return rows == 1 ? 4 : 2; }
  static constexpr int kMaxGroupRows = 2;
  static constexpr int kMaxChannelRows = 4;
  static constexpr int float_vectors(int rows) { return rows == 1 ? 4 : 2; }
  static constexpr int kMaxFloatRows = 6;

  static __m256i first(std::int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
  }

  static F32 zero() { return _mm256_setzero_ps(); }
  static F32 broadcast(float x) { return _mm256_set1_ps(x); }
  static F32 load(const float* p) { return _mm256_loadu_ps(p); }
  static F32 load_first(const float* p, std::int64_t count) {
    return _mm256_maskload_ps(p, first(count));
  }
  static void store(float* p, F32 x) { _mm256_storeu_ps(p, x); }
  static void store_first(float* p, F32 x, std::int64_t count) {
    _mm256_maskstore_ps(p, first(count), x);
  }
  static F32 load_f16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F32 load_bf16(const std::uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
  static F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
  static F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
  static F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
  static F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }

  static I32 zero_i32() { return _mm256_setzero_si256(); }
  static I32 broadcast_i32(std::int32_t x) { return _mm256_set1_epi32(x); }
  static F32 to_f32(I32 x) { return _mm256_cvtepi32_ps(x); }
  static I32 round(F32 x) { return _mm256_cvtps_epi32(x); }
  static F32 power_of_two(I32 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(add_i32(n, broadcast_i32(127)), 23));
  }
  static I32 add_i32(I32 a, I32 b) { return _mm256_add_epi32(a, b); }
  static I32 sub_i32(I32 a, I32 b) { return _mm256_sub_epi32(a, b); }
  static I32 load_u8(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static I32 load_i8(const std::uint8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_i8(std::int8_t* p, I32 x) {
    const __m128i words = _mm_packs_epi32(low_half(x), high_half(x));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
  static I32 mul_i16(I32 a, I32 b) { return _mm256_madd_epi16(a, b); }
  static I32 max_abs_bits(I32 max, F32 x) {
    return _mm256_max_epi32(max,
                            _mm256_and_si256(_mm256_castps_si256(x), broadcast_i32(0x7fffffff)));
  }
  static std::int32_t reduce_max(I32 x) {
    __m128i max = _mm_max_epi32(low_half(x), high_half(x));
    max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(max, _mm_shuffle_epi32(max, 0xb1)));
  }
  static std::int32_t reduce_add(I32 x) {
    __m128i sum = _mm_add_epi32(low_half(x), high_half(x));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
  }

  static Quads load_quads(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Quads load_quads_8bit(const std::uint8_t* p) {
    return _mm256_xor_si256(load_quads(p), _mm256_set1_epi8(static_cast<char>(0x80)));
  }
  static Quads low_nibbles(Quads x) { return _mm256_and_si256(x, _mm256_set1_epi8(0x0f)); }
  static Quads high_nibbles(Quads x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  template <int kFirst, int kBits>
  static Quads add_upper_bits(Quads low, Quads upper) {
    constexpr int kLeft = 4 - kFirst;
    const Quads moved = kLeft >= 0 ? _mm256_slli_epi16(upper, kLeft >= 0 ? kLeft : 0)
                                   : _mm256_srli_epi16(upper, kLeft < 0 ? -kLeft : 0);
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(((1 << kBits) - 1) << 4));
    return _mm256_or_si256(low, _mm256_and_si256(moved, mask));
  }
  static Quads look_up(const LookupTable& table, Quads codes) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(table.byte));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), codes);
  }
  static Quads broadcast_quad(const std::int8_t* p) {
    std::int32_t quad;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return _mm256_set1_epi32(quad);
  }
  template <int kBits>
  static I32 dot(I32 sum, Quads codes, Quads x) {
    // Pairs of products in 16 bits. 8 bits: |code| <= 128 and |x| <= 127, so that a pair is at most
    // 2 * 128 * 127 < 2^15; with the sign on x's side nothing saturates.
    const __m256i pairs =
        kBits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
                   : _mm256_maddubs_epi16(codes, x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  // Eight times two pairs of products are at most 8 * 2 * 15 * 128 < 2^15.
  using NibbleSums = __m256i;
  static NibbleSums add_nibble_products(NibbleSums sums, Quads codes, Quads x) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, x));
  }
  static I32 nibble_total(NibbleSums sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  template <int kShift, int kBits>
  static I32 bits(Quads x) {
    return _mm256_and_si256(_mm256_srli_epi32(x, kShift), broadcast_i32((1 << kBits) - 1));
  }

  static Pairs load_pairs(const std::uint8_t* p) { return load_quads(p); }
  static Pairs broadcast_pair(const std::uint16_t* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return _mm256_set1_epi32(pair);
  }
  static F32 dot_bf16(F32 sum, Pairs a, Pairs b) {
    return fma(high_bf16(a), high_bf16(b), fma(low_bf16(a), low_bf16(b), sum));
  }
  static F32 low_bf16(Pairs x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  static F32 high_bf16(Pairs x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(x, broadcast_i32(static_cast<std::int32_t>(0xffff0000))));
  }
  static void store_bf16(std::uint16_t* p, F32 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), broadcast_i32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, broadcast_i32(0x7fff)));
    const __m256i quiet_nan = _mm256_or_si256(bits, broadcast_i32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet_nan, is_nan), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(low_half(high), high_half(high)));
  }

 private:
  static __m128i low_half(__m256i x) { return _mm256_castsi256_si128(x); }
  static __m128i high_half(__m256i x) { return _mm256_extracti128_si256(x, 1); }
};

}  // namespace
}  // namespace pellucid
