// The interface of the kernels that measure a level's peak operations per second and read
// bandwidth.
#pragma once

#include <cstdint>

namespace pellucid {

// Each kernel runs `num_rounds` rounds in registers, without memory accesses or dependencies, and
// returns the number of operations; a multiplication and its addition are two.
struct PeakKernels {
  std::int64_t (*int8)(std::int64_t num_rounds);
  std::int64_t (*bf16)(std::int64_t num_rounds);
  std::int64_t (*f32)(std::int64_t num_rounds);
  // Reads memory, a multiple of 1024 bytes, in four streams: each of them in order.
  void (*read)(const void* bytes, std::int64_t num_bytes);
};

}  // namespace pellucid
