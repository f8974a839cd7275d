#include "../kernel_table.h"
#include "elementwise_table.h"
#include "linear_table.h"
#include "simd_avx512.h"

namespace pellucid {

extern const KernelTable kAvx512Kernels;
const KernelTable kAvx512Kernels = {"avx512", linear_kernels<Simd>(), elementwise::kernels()};

}  // namespace pellucid
