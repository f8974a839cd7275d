// The kernels for any processor.
#include "../kernel_table.h"
#include "attention_table.h"
#include "elementwise_table.h"
#include "linear_table.h"
#include "peak_table.h"
#include "quantize_table.h"
#include "recurrence_table.h"
#include "sampling_table.h"
#include "simd_portable.h"

namespace pellucid {

extern const KernelTable kPortableKernels;
const KernelTable kPortableKernels = {"portable",
                                      linear_kernels<Simd>(),
                                      peak_kernels<Simd>(),
                                      elementwise::kernels(),
                                      attention_kernels<Simd, 2, 1, 1>(),
                                      quantize::kernels(),
                                      sampling::kernels(),
                                      recurrence::kernels()};

}  // namespace pellucid
