// The Hadamard rotation of groups of 32 dimensions: each number becomes a sum of all of its group
// with signs, so that one large number spreads over the codes of a group (QuIP#, arXiv 2402.04396;
// QuaRot, arXiv 2404.00456).
#pragma once

#include <cstdint>

#include "../shuffle.h"
#include "attention_kernels.h"

namespace pellucid {
namespace {
namespace hadamard {

// A quarter of a cache line, on every level: all compute the same bits in the same order.
typedef float Four __attribute__((vector_size(16)));

constexpr int kFours = kKVGroupDims / 4;

// The rotation without its factor 1 / sqrt(32), so that applying it twice multiplies by 32: once
// with kIn and once with kOut gives the numbers back, and both are powers of two.
constexpr float kIn = 1.0f / 8.0f;
constexpr float kOut = 1.0f / 4.0f;

// y [32] = factor * H x [32], in five steps: partners 16, 8, 4, 2 and 1 dimensions apart become
// their sum and their difference. y may be x.
inline void rotate(const float* x, float factor, float* y) {
  Four v[kFours];
  __builtin_memcpy(v, x, sizeof(v));
#pragma GCC unroll 8
  for (int i = 0; i < kFours; ++i) v[i] *= factor;
#pragma GCC unroll 3
  for (int distance = kFours / 2; distance > 0; distance /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kFours; ++i) {
      if (i & distance) continue;
      const Four a = v[i], b = v[i + distance];
      v[i] = a + b;
      v[i + distance] = a - b;
    }
  }
  constexpr Four kHalves = {1.0f, 1.0f, -1.0f, -1.0f};
  constexpr Four kNeighbours = {1.0f, -1.0f, 1.0f, -1.0f};
#pragma GCC unroll 8
  for (int i = 0; i < kFours; ++i) {
    v[i] = shuffle<2, 3, 0, 1>(v[i], v[i]) + v[i] * kHalves;
    v[i] = shuffle<1, 0, 3, 2>(v[i], v[i]) + v[i] * kNeighbours;
  }
  __builtin_memcpy(y, v, sizeof(v));
}

// y [padded], whole groups, of x [size], which zeros continue.
inline void rotate_groups(const float* x, std::int64_t size, std::int64_t padded, float factor,
                          float* y) {
  std::int64_t d = 0;
  for (; d + kKVGroupDims <= size; d += kKVGroupDims) rotate(x + d, factor, y + d);
  if (d < padded) {
    float group[kKVGroupDims] = {};
    __builtin_memcpy(group, x + d, sizeof(float) * static_cast<std::size_t>(size - d));
    rotate(group, factor, y + d);
  }
}

}  // namespace hadamard
}  // namespace
}  // namespace pellucid
