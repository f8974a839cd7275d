// The kernels for x86 processors with AVX2, FMA and F16C.
#include "../kernel_table.h"
#include "attention_table.h"
#include "elementwise_table.h"
#include "linear_table.h"
#include "peak_table.h"
#include "quantize_table.h"
#include "recurrence_table.h"
#include "sampling_table.h"
#include "simd_avx2.h"

namespace pellucid {

extern const KernelTable kAvx2Kernels;
const KernelTable kAvx2Kernels = {"avx2",
                                  linear_kernels<Simd>(),
                                  peak_kernels<Simd>(),
                                  elementwise::kernels(),
                                  attention_kernels<Simd, 4, 2, 1>(),
                                  quantize::kernels(),
                                  sampling::kernels(),
                                  recurrence::kernels()};

}  // namespace pellucid
