// The roofline of this machine, which every benchmark is compared with: its memory bandwidth and
// its peak operations per second (Williams, Waterman, Patterson 2009).
#pragma once

#include "clock.h"
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

using Clock = double (*)();  // seconds

// Measures both on all threads of the pool at the same time, with the best instructions of the
// level. Each measurement takes some tenths of a second; the fastest moment counts. Reads memory
// that no cache holds, and allocates a quarter of a gigabyte or more for it. Throws std::bad_alloc.
Roofline measure_roofline(const KernelTable& kernels, ThreadPool& pool, Clock now = seconds_now);

}  // namespace pellucid
