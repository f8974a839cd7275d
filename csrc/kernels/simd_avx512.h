// The vectors of kernels with AVX-512: 512 bits. simd_portable.h defines each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "codebook.h"

namespace pellucid {
namespace {

struct Simd {
  static constexpr int kLanes = 16;
  static constexpr bool kHasSignedCodes = false;

  using F32 = __m512;
  using I32 = __m512i;
  using Quads = __m512i;
  using Pairs = __m512i;

  static constexpr int quantized_vectors(int) { return 2; }
  static constexpr int kMaxGroupRows = 6;  // 12 sums, 12 totals, weights, scales: all 32 registers
  static constexpr int kMaxChannelRows = 8;
  static constexpr int float_vectors(int) { return 2; }
  static constexpr int kMaxFloatRows = 8;

  static __mmask16 first(std::int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }

  static F32 zero() { return _mm512_setzero_ps(); }
  static F32 broadcast(float x) { return _mm512_set1_ps(x); }
  static F32 load(const float* p) { return _mm512_loadu_ps(p); }
  static F32 load_first(const float* p, std::int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), p);
  }
  static void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
  static void store_first(float* p, F32 x, std::int64_t count) {
    _mm512_mask_storeu_ps(p, first(count), x);
  }
  static F32 load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F32 load_bf16(const std::uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  static F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
  static F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
  static F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
  static F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }

  static I32 zero_i32() { return _mm512_setzero_si512(); }
  static I32 broadcast_i32(std::int32_t x) { return _mm512_set1_epi32(x); }
  static F32 to_f32(I32 x) { return _mm512_cvtepi32_ps(x); }
  static I32 round(F32 x) { return _mm512_cvtps_epi32(x); }
  static F32 power_of_two(I32 n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(add_i32(n, broadcast_i32(127)), 23));
  }
  static I32 add_i32(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
  static I32 sub_i32(I32 a, I32 b) { return _mm512_sub_epi32(a, b); }
  static I32 load_u8(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I32 load_i8(const std::uint8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_i8(std::int8_t* p, I32 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }
  static I32 mul_i16(I32 a, I32 b) { return _mm512_madd_epi16(a, b); }
  static I32 max_abs_bits(I32 max, F32 x) {
    return _mm512_max_epi32(max,
                            _mm512_and_si512(_mm512_castps_si512(x), broadcast_i32(0x7fffffff)));
  }
  static std::int32_t reduce_max(I32 x) { return _mm512_reduce_max_epi32(x); }
  static std::int32_t reduce_add(I32 x) { return _mm512_reduce_add_epi32(x); }

  static Quads load_quads(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static Quads load_quads_8bit(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static Quads low_nibbles(Quads x) { return _mm512_and_si512(x, _mm512_set1_epi8(0x0f)); }
  static Quads high_nibbles(Quads x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
  template <int kFirst, int kBits>
  static Quads add_upper_bits(Quads low, Quads upper) {
    constexpr int kLeft = 4 - kFirst;
    const Quads moved = kLeft >= 0 ? _mm512_slli_epi16(upper, kLeft >= 0 ? kLeft : 0)
                                   : _mm512_srli_epi16(upper, kLeft < 0 ? -kLeft : 0);
    const __m512i mask = _mm512_set1_epi8(static_cast<char>(((1 << kBits) - 1) << 4));
    return _mm512_or_si512(low, _mm512_and_si512(moved, mask));
  }
  static Quads look_up(const LookupTable& table, Quads codes) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(table.byte));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), codes);
  }
  static Quads broadcast_quad(const std::int8_t* p) {
    std::int32_t quad;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return _mm512_set1_epi32(quad);
  }
  template <int kBits>
  static I32 dot(I32 sum, Quads codes, Quads x) {
    return _mm512_dpbusd_epi32(sum, codes, x);
  }
  using NibbleSums = I32;
  static NibbleSums add_nibble_products(NibbleSums sums, Quads codes, Quads x) {
    return dot<4>(sums, codes, x);
  }
  static I32 nibble_total(NibbleSums sums) { return sums; }
  template <int kShift, int kBits>
  static I32 bits(Quads x) {
    return _mm512_and_si512(_mm512_srli_epi32(x, kShift), broadcast_i32((1 << kBits) - 1));
  }

  static Pairs load_pairs(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static Pairs broadcast_pair(const std::uint16_t* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  static F32 dot_bf16(F32 sum, Pairs a, Pairs b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static F32 low_bf16(Pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F32 high_bf16(Pairs x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, broadcast_i32(static_cast<int>(0xffff0000))));
  }
  static void store_bf16(std::uint16_t* p, F32 x) {
    __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
    constexpr int kSubnormal = 0x20;
    const __mmask16 subnormal = _mm512_fpclass_ps_mask(x, kSubnormal);
    if (__builtin_expect(subnormal, 0)) {  // the instruction takes them for zeros
      const __m512i bits = _mm512_castps_si512(x);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), broadcast_i32(1));
      const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, broadcast_i32(0x7fff)));
      rounded = _mm256_mask_blend_epi16(subnormal, rounded,
                                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
    }
    __builtin_memcpy(p, &rounded, sizeof(rounded));
  }
};

}  // namespace
}  // namespace pellucid
