// The vectors of kernels in plain C++: the definition of the other levels' vectors. Compilers turn
// the loops into the baseline instructions of the architecture.
#pragma once

#include <cstdint>

#include "codebook.h"

namespace pellucid {
namespace {

struct Simd {
  static constexpr int kLanes = 8;  // columns, each of 32 bits

  struct F32 {
    float lane[kLanes];
  };
  struct I32 {
    std::int32_t lane[kLanes];
  };
  // Four bytes of each column: weights or codes of four neighbouring inputs.
  struct Quads {
    std::uint8_t byte[4 * kLanes];
  };
  // Two bf16 of each column.
  struct Pairs {
    std::uint16_t half[2 * kLanes];
  };

  // Whether load_quads_8bit() makes codes signed, for dot products of two signed operands.
  static constexpr bool kHasSignedCodes = true;

  // Register tiles: how many vectors of columns for a number of rows, and the most rows.
  static constexpr int quantized_vectors(int) { return 1; }
  static constexpr int kMaxGroupRows = 2;
  static constexpr int kMaxChannelRows = 4;
  static constexpr int float_vectors(int) { return 1; }
  static constexpr int kMaxFloatRows = 4;

  template <class Vector, class Function>
  static Vector each(Function function) {
    Vector result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = function(i);
    return result;
  }

  static F32 zero() { return broadcast(0.0f); }
  static F32 broadcast(float x) {
    return each<F32>([=](int) { return x; });
  }
  static F32 load(const float* p) {
    F32 x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  // Loads or stores the first `count` lanes; the others are zero, or are not written.
  static F32 load_first(const float* p, std::int64_t count) {
    F32 x = zero();
    for (int i = 0; i < count; ++i) x.lane[i] = p[i];
    return x;
  }
  static void store(float* p, const F32& x) { __builtin_memcpy(p, &x, sizeof(x)); }
  static void store_first(float* p, const F32& x, std::int64_t count) {
    for (int i = 0; i < count; ++i) p[i] = x.lane[i];
  }
  static F32 load_f16(const std::uint16_t* p) {
    return each<F32>([=](int i) { return float_of_f16(p[i]); });
  }
  static F32 load_bf16(const std::uint16_t* p) {
    return each<F32>([=](int i) { return float_of_bf16(p[i]); });
  }
  static F32 add(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F32 sub(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F32 mul(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  // The greater one; b where either is not a number.
  static F32 max(const F32& a, const F32& b) {
    return each<F32>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // a * b + c; rounded once where the level has such an instruction, here twice.
  static F32 fma(const F32& a, const F32& b, const F32& c) {
    return each<F32>([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }

  static I32 zero_i32() { return broadcast_i32(0); }
  static I32 broadcast_i32(std::int32_t x) {
    return each<I32>([=](int) { return x; });
  }
  static F32 to_f32(const I32& x) {
    return each<F32>([&](int i) { return static_cast<float>(x.lane[i]); });
  }
  // To the nearest integer, ties to even; |x| < 2^22.
  static I32 round(const F32& x) {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: its last bit is worth one
    return each<I32>([&](int i) {
      const float shifted = x.lane[i] + kShift;
      return static_cast<std::int32_t>(shifted - kShift);
    });
  }
  // 2^n for -126 <= n <= 127; 0 for -127.
  static F32 power_of_two(const I32& n) {
    return each<F32>(
        [&](int i) { return float_of_bits(static_cast<std::uint32_t>(n.lane[i] + 127) << 23); });
  }
  static I32 add_i32(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static I32 sub_i32(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static I32 load_u8(const std::uint8_t* p) {
    return each<I32>([=](int i) { return p[i]; });
  }
  static I32 load_i8(const std::uint8_t* p) {
    return each<I32>([=](int i) { return static_cast<std::int8_t>(p[i]); });
  }
  // Lanes that fit in 8 bits.
  static void store_i8(std::int8_t* p, const I32& x) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(x.lane[i]);
  }
  // a * b, both of at most 16 bits, a not negative.
  static I32 mul_i16(const I32& a, const I32& b) {
    return each<I32>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  // The greater of max and the bits of |x|.
  static I32 max_abs_bits(const I32& max, const F32& x) {
    return each<I32>([&](int i) {
      std::int32_t bits;
      __builtin_memcpy(&bits, &x.lane[i], sizeof(bits));
      bits &= 0x7fffffff;
      return bits > max.lane[i] ? bits : max.lane[i];
    });
  }
  static std::int32_t reduce_max(const I32& x) {
    std::int32_t max = x.lane[0];
    for (int i = 1; i < kLanes; ++i) max = x.lane[i] > max ? x.lane[i] : max;
    return max;
  }
  static std::int32_t reduce_add(const I32& x) {
    std::int32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += x.lane[i];
    return sum;
  }

  static Quads load_quads(const std::uint8_t* p) {
    Quads x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static Quads load_quads_8bit(const std::uint8_t* p) {
    Quads x;
    for (int i = 0; i < 4 * kLanes; ++i) x.byte[i] = p[i] ^ 0x80;
    return x;
  }
  static Quads low_nibbles(Quads x) {
    for (std::uint8_t& byte : x.byte) byte &= 0x0f;
    return x;
  }
  static Quads high_nibbles(Quads x) {
    for (std::uint8_t& byte : x.byte) byte >>= 4;
    return x;
  }
  // low + kBits bits of each byte of `upper`, from bit kFirst on, as the bits above the fourth.
  template <int kFirst, int kBits>
  static Quads add_upper_bits(Quads low, const Quads& upper) {
    for (int i = 0; i < 4 * kLanes; ++i) {
      low.byte[i] |= static_cast<std::uint8_t>((upper.byte[i] >> kFirst & ((1 << kBits) - 1)) << 4);
    }
    return low;
  }
  // The byte of a table of 16 that each code selects.
  static Quads look_up(const LookupTable& table, Quads codes) {
    for (std::uint8_t& byte : codes.byte) byte = table.byte[byte];
    return codes;
  }
  // Four codes of x for every column.
  static Quads broadcast_quad(const std::int8_t* p) {
    Quads x;
    for (int i = 0; i < kLanes; ++i) __builtin_memcpy(x.byte + 4 * i, p, 4);
    return x;
  }
  // sum + the four products of each column. Codes of kBits are unsigned; those of 8 bits are what
  // load_quads_8bit() makes of them. x is signed.
  template <int kBits>
  static I32 dot(const I32& sum, const Quads& codes, const Quads& x) {
    return each<I32>([&](int i) {
      std::int32_t products = 0;
      for (int j = 4 * i; j < 4 * i + 4; ++j) {
        products += static_cast<std::int8_t>(codes.byte[j]) * static_cast<std::int8_t>(x.byte[j]);
      }
      return sum.lane[i] + products;
    });
  }
  // Sums of products as of dot<4>, of at most eight quads, which begin as zero_i32(); their totals.
  using NibbleSums = I32;
  static NibbleSums add_nibble_products(const NibbleSums& sums, const Quads& codes,
                                        const Quads& x) {
    return dot<4>(sums, codes, x);
  }
  static I32 nibble_total(const NibbleSums& sums) { return sums; }
  // kBits bits of each column's four bytes, from bit kShift on, the first byte being the lowest.
  template <int kShift, int kBits>
  static I32 bits(const Quads& x) {
    return each<I32>(
        [&](int i) { return (x.byte[4 * i + kShift / 8] >> (kShift % 8)) & ((1 << kBits) - 1); });
  }

  static Pairs load_pairs(const std::uint8_t* p) {
    Pairs x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static Pairs broadcast_pair(const std::uint16_t* p) {
    Pairs x;
    for (int i = 0; i < kLanes; ++i) __builtin_memcpy(x.half + 2 * i, p, 4);
    return x;
  }
  // sum + the two products of each column.
  static F32 dot_bf16(const F32& sum, const Pairs& a, const Pairs& b) {
    return fma(high_bf16(a), high_bf16(b), fma(low_bf16(a), low_bf16(b), sum));
  }
  static F32 low_bf16(const Pairs& x) {
    return each<F32>([&](int i) { return float_of_bf16(x.half[2 * i]); });
  }
  static F32 high_bf16(const Pairs& x) {
    return each<F32>([&](int i) { return float_of_bf16(x.half[2 * i + 1]); });
  }
  // Rounded to nearest, ties to even.
  static void store_bf16(std::uint16_t* p, const F32& x) {
    for (int i = 0; i < kLanes; ++i) p[i] = bf16_of_float(x.lane[i]);
  }

 private:
  static float float_of_bits(std::uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }
  static float float_of_bf16(std::uint16_t bits) {
    return float_of_bits(std::uint32_t{bits} << 16);
  }
  static std::uint16_t bf16_of_float(float x) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    if (is_nan) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  static float float_of_f16(std::uint16_t bits) {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | magnitude << 13);
    // The exponent's bias is 15, not 127; as a product subnormals come out normal.
    const float x = float_of_bits(magnitude << 13) * float_of_bits((127u + 112u) << 23);
    return sign != 0 ? -x : x;
  }
};

}  // namespace
}  // namespace pellucid
