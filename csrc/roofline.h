// The two ceilings of this machine that every benchmark is compared with: how fast it reads memory,
// and how fast it multiplies (Williams, Waterman, Patterson 2009).
#pragma once

#include "kernel_table.h"
#include "thread_pool.h"

namespace pellucid {

// A multiplication and its addition are two operations.
struct Roofline {
  double read_bytes_per_second;
  double int8_ops_per_second;
  double bf16_flops_per_second;
  double f32_flops_per_second;
};

// All threads of the pool at the same time, with the best instructions of the level; of some tenths
// of a second of each, the fastest moment. Memory is read where no cache can help: a quarter of a
// gigabyte or more is allocated meanwhile. Throws std::bad_alloc.
Roofline measure_roofline(const KernelTable& kernels, ThreadPool& pool);

}  // namespace pellucid
