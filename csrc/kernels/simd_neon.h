// The vectors of kernels for Arm with dot products: 128 bits. simd_portable.h defines each
// function.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "codebook.h"

namespace pellucid {
namespace {

struct Simd {
  static constexpr int kLanes = 4;

  using F32 = float32x4_t;
  using I32 = int32x4_t;
  using Quads = uint8x16_t;
  using Pairs = uint32x4_t;

  static constexpr bool kHasSignedCodes = true;

  static constexpr int quantized_vectors(int rows) { return rows == 1 ? 8 : 4; }
  static constexpr int kMaxGroupRows = 3;  // 12 sums, 12 totals, weights: of 32 registers
  static constexpr int kMaxChannelRows = 5;
  static constexpr int float_vectors(int rows) { return rows == 1 ? 8 : 4; }
  static constexpr int kMaxFloatRows = 6;

  static F32 zero() { return broadcast(0.0f); }
  static F32 broadcast(float x) { return vdupq_n_f32(x); }
  static F32 load(const float* p) { return vld1q_f32(p); }
  static F32 load_first(const float* p, std::int64_t count) {
    float lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(float* p, F32 x) { vst1q_f32(p, x); }
  static void store_first(float* p, F32 x, std::int64_t count) {
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
  }
  static F32 load_f16(const std::uint16_t* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
  }
  static F32 load_bf16(const std::uint16_t* p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16));
  }
  static F32 add(F32 a, F32 b) { return vaddq_f32(a, b); }
  static F32 sub(F32 a, F32 b) { return vsubq_f32(a, b); }
  static F32 mul(F32 a, F32 b) { return vmulq_f32(a, b); }
  static F32 max(F32 a, F32 b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }

  static I32 zero_i32() { return broadcast_i32(0); }
  static I32 broadcast_i32(std::int32_t x) { return vdupq_n_s32(x); }
  static F32 to_f32(I32 x) { return vcvtq_f32_s32(x); }
  static I32 round(F32 x) { return vcvtnq_s32_f32(x); }
  static F32 power_of_two(I32 n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(add_i32(n, broadcast_i32(127)), 23));
  }
  static I32 add_i32(I32 a, I32 b) { return vaddq_s32(a, b); }
  static I32 sub_i32(I32 a, I32 b) { return vsubq_s32(a, b); }
  static I32 load_u8(const std::uint8_t* p) {
    std::uint32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
  }
  static I32 load_i8(const std::uint8_t* p) {
    std::uint32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
  }
  static void store_i8(std::int8_t* p, I32 x) {
    const int16x4_t words = vmovn_s32(x);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    const std::uint32_t four = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
    __builtin_memcpy(p, &four, sizeof(four));
  }
  static I32 mul_i16(I32 a, I32 b) { return vmulq_s32(a, b); }
  static I32 max_abs_bits(I32 max, F32 x) {
    return vmaxq_s32(max, vreinterpretq_s32_f32(vabsq_f32(x)));
  }
  static std::int32_t reduce_max(I32 x) { return vmaxvq_s32(x); }
  static std::int32_t reduce_add(I32 x) { return vaddvq_s32(x); }

  static Quads load_quads(const std::uint8_t* p) { return vld1q_u8(p); }
  static Quads load_quads_8bit(const std::uint8_t* p) {
    return veorq_u8(vld1q_u8(p), vdupq_n_u8(0x80));
  }
  static Quads low_nibbles(Quads x) { return vandq_u8(x, vdupq_n_u8(0x0f)); }
  static Quads high_nibbles(Quads x) { return vshrq_n_u8(x, 4); }
  template <int kFirst, int kBits>
  static Quads add_upper_bits(Quads low, Quads upper) {
    constexpr int kLeft = 4 - kFirst;
    Quads moved = upper;
    if constexpr (kLeft > 0) moved = vshlq_n_u8(upper, kLeft);
    if constexpr (kLeft < 0) moved = vshrq_n_u8(upper, -kLeft);
    return vorrq_u8(low, vandq_u8(moved, vdupq_n_u8(((1 << kBits) - 1) << 4)));
  }
  static Quads look_up(const LookupTable& table, Quads codes) {
    return vqtbl1q_u8(vld1q_u8(table.byte), codes);
  }
  static Quads broadcast_quad(const std::int8_t* p) {
    std::uint32_t quad;
    __builtin_memcpy(&quad, p, sizeof(quad));
    return vreinterpretq_u8_u32(vdupq_n_u32(quad));
  }
  template <int kBits>
  static I32 dot(I32 sum, Quads codes, Quads x) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(x));
  }
  using NibbleSums = I32;
  static NibbleSums add_nibble_products(NibbleSums sums, Quads codes, Quads x) {
    return dot<4>(sums, codes, x);
  }
  static I32 nibble_total(NibbleSums sums) { return sums; }
  template <int kShift, int kBits>
  static I32 bits(Quads x) {
    uint32x4_t shifted = vreinterpretq_u32_u8(x);
    if constexpr (kShift > 0) shifted = vshrq_n_u32(shifted, kShift);
    return vreinterpretq_s32_u32(vandq_u32(shifted, vdupq_n_u32((1u << kBits) - 1)));
  }

  static Pairs load_pairs(const std::uint8_t* p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
  static Pairs broadcast_pair(const std::uint16_t* p) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return vdupq_n_u32(pair);
  }
  static F32 dot_bf16(F32 sum, Pairs a, Pairs b) {
    return fma(high_bf16(a), high_bf16(b), fma(low_bf16(a), low_bf16(b), sum));
  }
  static F32 low_bf16(Pairs x) { return vreinterpretq_f32_u32(vshlq_n_u32(x, 16)); }
  static F32 high_bf16(Pairs x) {
    return vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000u)));
  }
  static void store_bf16(std::uint16_t* p, F32 x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet_nan = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t is_number = vceqq_f32(x, x);
    vst1_u16(p, vshrn_n_u32(vbslq_u32(is_number, rounded, quiet_nan), 16));
  }
};

}  // namespace
}  // namespace pellucid
