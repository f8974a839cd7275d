// The noise of a token, and its arrival time in the race: the arithmetic of
// execution/randomness.py.
#pragma once

#include <cstdint>

#include "sampling_kernels.h"

namespace pellucid {
namespace {
namespace noise {

struct Block {
  std::uint32_t words[4];
};

inline Block block(const NoiseKey& key, std::uint32_t first, std::uint32_t last) {
  std::uint32_t a = first, b = key.position, c = key.stream, d = last;
  std::uint32_t left = key.seed_low, right = key.seed_high;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first_product = std::uint64_t{0xD2511F53} * a;
    const std::uint64_t second_product = std::uint64_t{0xCD9E8D57} * c;
    a = static_cast<std::uint32_t>(second_product >> 32) ^ b ^ left;
    b = static_cast<std::uint32_t>(second_product);
    c = static_cast<std::uint32_t>(first_product >> 32) ^ d ^ right;
    d = static_cast<std::uint32_t>(first_product);
    left += 0x9E3779B9;
    right += 0xBB67AE85;
  }
  return {{a, b, c, d}};
}

// A token's first 16 random bits. Eight tokens share the block that has them.
inline std::uint32_t upper_bits(const NoiseKey& key, std::int64_t token) {
  const auto index = static_cast<std::uint32_t>(token);
  const std::uint32_t word = block(key, index / 128 * 16 + index % 16, 0).words[index / 16 % 4];
  return index / 64 % 2 == 0 ? word & 0xffff : word >> 16;
}

// -log(u), 0 < u < 1.
inline double minus_log(double u) {
  int exponent;
  double m = __builtin_frexp(u, &exponent);
  if (m < 0.7071067811865476) {
    m *= 2;
    --exponent;
  }
  const double t = (m - 1) / (m + 1);
  const double square = t * t;
  double series = 1.0 / 23;
  for (int odd = 21; odd > 1; odd -= 2) series = series * square + 1.0 / odd;
  return -(exponent * 0.6931471805599453 + 2 * t * (series * square + 1));
}

inline double exponential(const NoiseKey& key, std::int64_t token, std::uint32_t upper_bits) {
  const Block own = block(key, static_cast<std::uint32_t>(token), 1);
  const std::uint64_t lower = std::uint64_t{own.words[0]} << 4 | own.words[1] >> 28;
  const std::uint64_t bits = std::uint64_t{upper_bits} << 36 | lower;
  return minus_log(1 - (static_cast<double>(bits) + 0.5) * 0x1p-52);
}

// Noise is at least its upper bits / 2^16. So a token whose upper bits are greater than
// latest(time) times its weight arrives after `time`. latest() leaves room for rounding.
inline float latest(double time) { return static_cast<float>(time * 0x1p16 * (1 + 0x1p-16)); }

inline bool may_arrive(std::uint32_t upper_bits, float weight, float latest) {
  return static_cast<float>(upper_bits) <= latest * weight;
}

inline void race(const NoiseKey& key, std::int64_t token, std::uint32_t upper_bits, float weight,
                 Arrival& first) {
  const double time = exponential(key, token, upper_bits) / static_cast<double>(weight);
  if (time < first.time || (time == first.time && token < first.token)) first = {time, token};
}

}  // namespace noise
}  // namespace
}  // namespace pellucid
