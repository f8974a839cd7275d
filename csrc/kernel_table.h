// The kernels of one instruction set level. Each level is one source file in kernels/, compiled for
// that level, which exports one table; isa.h says which of them this machine can run.
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/elementwise_kernels.h"
#include "kernels/linear_kernels.h"
#include "kernels/peak_kernels.h"
#include "kernels/quantize_kernels.h"
#include "kernels/recurrence_kernels.h"
#include "kernels/sampling_kernels.h"

namespace pellucid {

struct KernelTable {
  const char* isa;  // "portable", "avx2", "avx512", "amx", "neon"
  LinearKernels linear;
  PeakKernels peaks;
  ElementwiseKernels elementwise;
  AttentionKernels attention;
  QuantizeKernels quantize;
  SamplingKernels sampling;
  RecurrenceKernels recurrence;
};

}  // namespace pellucid
