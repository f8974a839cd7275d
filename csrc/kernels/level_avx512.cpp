// The kernels for x86 processors with AVX-512, VNNI and bf16 products.
#include "../kernel_table.h"
#include "attention_table.h"
#include "elementwise_table.h"
#include "linear_table.h"
#include "peak_table.h"
#include "quantize_table.h"
#include "recurrence_table.h"
#include "sampling_table.h"
#include "simd_avx512.h"

namespace pellucid {

extern const KernelTable kAvx512Kernels;
const KernelTable kAvx512Kernels = {"avx512",
                                    linear_kernels<Simd>(),
                                    peak_kernels<Simd>(),
                                    elementwise::kernels(),
                                    attention_kernels<Simd, 7, 2, 2>(),
                                    quantize::kernels(),
                                    sampling::kernels(),
                                    recurrence::kernels()};

}  // namespace pellucid
