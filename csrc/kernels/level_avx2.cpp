#include "../kernel_table.h"
#include "elementwise_table.h"
#include "linear_table.h"
#include "simd_avx2.h"

namespace pellucid {

extern const KernelTable kAvx2Kernels;
const KernelTable kAvx2Kernels = {"avx2", linear_kernels<Simd>(), elementwise::kernels()};

}  // namespace pellucid
