// The kernels for Arm processors with dot products.
#include "../kernel_table.h"
#include "attention_table.h"
#include "elementwise_table.h"
#include "linear_table.h"
#include "peak_table.h"
#include "quantize_table.h"
#include "recurrence_table.h"
#include "sampling_table.h"
#include "simd_neon.h"

namespace pellucid {

extern const KernelTable kNeonKernels;
const KernelTable kNeonKernels = {"neon",
                                  linear_kernels<Simd>(),
                                  peak_kernels<Simd>(),
                                  elementwise::kernels(),
                                  attention_kernels<Simd, 4, 4, 2>(),
                                  quantize::kernels(),
                                  sampling::kernels(),
                                  recurrence::kernels()};

}  // namespace pellucid
