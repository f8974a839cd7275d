// Finds the instruction set levels that this machine can run, and chooses one.
#include "isa.h"

#if defined(PELLUCID_AMX_LEVEL)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <string>

#include "cpu_info.h"

namespace pellucid {

extern const KernelTable kPortableKernels;
#if defined(PELLUCID_AVX2_LEVEL)
extern const KernelTable kAvx2Kernels;
#endif
#if defined(PELLUCID_AVX512_LEVEL)
extern const KernelTable kAvx512Kernels;
#endif
#if defined(PELLUCID_AMX_LEVEL)
const KernelTable& amx_kernels();
#endif
#if defined(PELLUCID_NEON_LEVEL)
extern const KernelTable kNeonKernels;
#endif

namespace {

struct Level {
  const KernelTable* table;
  std::vector<std::string> needed_features;  // by the names of cpu_features()
  bool (*is_permitted)() = [] { return true; };
};

#if defined(PELLUCID_AMX_LEVEL)
// Asks Linux to keep tiles for the threads of this process, which no process may use unasked.
// Source: the Linux kernel's documentation, "Using XSTATE features in user space applications".
bool request_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::vector<Level> built_levels() {
  return {
#if defined(PELLUCID_AMX_LEVEL)
      {&amx_kernels(),
       {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
        "avx512_bf16", "amx_tile", "amx_bf16"},
       &request_tiles},
#endif
#if defined(PELLUCID_AVX512_LEVEL)
      {&kAvx512Kernels,
       {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
        "avx512_bf16"}},
#endif
#if defined(PELLUCID_AVX2_LEVEL)
      {&kAvx2Kernels, {"avx2", "fma", "f16c"}},
#endif
#if defined(PELLUCID_NEON_LEVEL)
      {&kNeonKernels, {"neon", "dotprod"}},
#endif
      {&kPortableKernels, {}},
  };
}

}  // namespace

std::vector<const KernelTable*> supported_kernel_tables() {
  const std::vector<std::string> features = cpu_features();  // sorted
  std::vector<const KernelTable*> tables;
  for (const Level& level : built_levels()) {
    const bool is_supported = std::all_of(
        level.needed_features.begin(), level.needed_features.end(), [&](const std::string& name) {
          return std::binary_search(features.begin(), features.end(), name);
        });
    if (is_supported && level.is_permitted()) tables.push_back(level.table);
  }
  return tables;
}

const KernelTable* find_kernel_table(std::string_view isa) {
  for (const KernelTable* table : supported_kernel_tables()) {
    if (isa.empty() || isa == table->isa) return table;
  }
  return nullptr;
}

}  // namespace pellucid
