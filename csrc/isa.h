// The instruction set levels: which kernels this machine can run.
#pragma once

#include <string_view>
#include <vector>

#include "kernel_table.h"

namespace pellucid {

// The levels that were built and that this processor and operating system support, best first;
// "portable" is always among them.
//
//   portable  plain C++
//   avx2      AVX2, FMA, F16C
//   avx512    AVX-512 F, BW, DQ, VL, VNNI and BF16 (Zen 4, Sapphire Rapids)
//   amx       the same, and AMX tiles of bf16 for linear layers in bf16 (Sapphire Rapids; Linux)
//   neon      Arm with dot products
std::vector<const KernelTable*> supported_kernel_tables();

// The kernels of the best level, or for tests those of the level `isa`; null if this machine cannot
// run them.
const KernelTable* find_kernel_table(std::string_view isa = {});

}  // namespace pellucid
