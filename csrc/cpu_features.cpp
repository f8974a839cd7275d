// The instruction set extensions of the processor, from CPUID, the kernel or sysctl.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu_info.h"

#if defined(__x86_64__)
#include <cpuid.h>
// Older headers lack some of these, and those of clang call them otherwise; the bits are Intel's.
#ifndef bit_AVX512FP16
#define bit_AVX512FP16 (1 << 23)
#endif
#ifndef bit_AMX_BF16
#define bit_AMX_BF16 (1 << 22)
#endif
#ifndef bit_AMX_TILE
#define bit_AMX_TILE (1 << 24)
#endif
#ifndef bit_AMX_INT8
#define bit_AMX_INT8 (1 << 25)
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace pellucid {
namespace {

#if defined(__x86_64__)

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  Registers r;
  // Fails, and leaves zeros, where the processor has no such leaf.
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// The register states that the operating system saves on a context switch (XCR0).
std::uint64_t enabled_states() {
  if ((cpuid(1, 0).ecx & bit_OSXSAVE) == 0) return 0;
  std::uint32_t low = 0, high = 0;
  // The instruction rather than _xgetbv(), which needs -mxsave.
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

std::vector<std::string> detect() {
  const Registers leaf1 = cpuid(1, 0);
  const Registers leaf7 = cpuid(7, 0);
  const Registers leaf7_1 = cpuid(7, 1);  // zeros where there is no such subleaf

  constexpr std::uint64_t kNone = 0x0;
  constexpr std::uint64_t kAvx = 0x6;      // XMM and the upper halves of YMM
  constexpr std::uint64_t kAvx512 = 0xe6;  // these, mask registers, ZMM0-15, ZMM16-31
  constexpr std::uint64_t kAmx = 0x60000;  // tile configuration and tile data

  const struct {
    const char* name;
    std::uint32_t bits;
    std::uint32_t mask;
    std::uint64_t needed_states;
  } kFeatures[] = {
      {"sse4_1", leaf1.ecx, bit_SSE4_1, kNone},
      {"sse4_2", leaf1.ecx, bit_SSE4_2, kNone},
      {"bmi2", leaf7.ebx, bit_BMI2, kNone},
      {"sha_ni", leaf7.ebx, bit_SHA, kNone},
      {"avx", leaf1.ecx, bit_AVX, kAvx},
      {"f16c", leaf1.ecx, bit_F16C, kAvx},
      {"fma", leaf1.ecx, bit_FMA, kAvx},
      {"avx2", leaf7.ebx, bit_AVX2, kAvx},
      {"gfni", leaf7.ecx, bit_GFNI, kAvx},  // reported only where its VEX forms can be used
      {"avx_vnni", leaf7_1.eax, bit_AVXVNNI, kAvx},
      {"avx512f", leaf7.ebx, bit_AVX512F, kAvx512},
      {"avx512dq", leaf7.ebx, bit_AVX512DQ, kAvx512},
      {"avx512bw", leaf7.ebx, bit_AVX512BW, kAvx512},
      {"avx512vl", leaf7.ebx, bit_AVX512VL, kAvx512},
      {"avx512vbmi", leaf7.ecx, bit_AVX512VBMI, kAvx512},
      {"avx512_vnni", leaf7.ecx, bit_AVX512VNNI, kAvx512},
      {"avx512_bf16", leaf7_1.eax, bit_AVX512BF16, kAvx512},
      {"avx512_fp16", leaf7.edx, bit_AVX512FP16, kAvx512},
      // On Linux a process must also ask for the tile state (arch_prctl) before its first use.
      {"amx_bf16", leaf7.edx, bit_AMX_BF16, kAmx},
      {"amx_tile", leaf7.edx, bit_AMX_TILE, kAmx},
      {"amx_int8", leaf7.edx, bit_AMX_INT8, kAmx},
  };
  const std::uint64_t states = enabled_states();
  std::vector<std::string> names;
  for (const auto& feature : kFeatures) {
    const bool in_processor = (feature.bits & feature.mask) != 0;
    const bool in_system = (states & feature.needed_states) == feature.needed_states;
    if (in_processor && in_system) names.emplace_back(feature.name);
  }
  return names;
}

#elif defined(__aarch64__) && defined(__linux__)

// Older kernel headers lack some of these; the values are the kernel's ABI.
#ifndef HWCAP2_I8MM
#define HWCAP2_I8MM (1UL << 13)
#endif
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1UL << 14)
#endif

std::vector<std::string> detect() {
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  const struct {
    const char* name;
    bool present;
  } kFeatures[] = {
      {"neon", (hwcap & HWCAP_ASIMD) != 0},   {"dotprod", (hwcap & HWCAP_ASIMDDP) != 0},
      {"fp16", (hwcap & HWCAP_ASIMDHP) != 0}, {"sve", (hwcap & HWCAP_SVE) != 0},
      {"i8mm", (hwcap2 & HWCAP2_I8MM) != 0},  {"bf16", (hwcap2 & HWCAP2_BF16) != 0},
  };
  std::vector<std::string> names;
  for (const auto& feature : kFeatures) {
    if (feature.present) names.emplace_back(feature.name);
  }
  return names;
}

#elif defined(__aarch64__) && defined(__APPLE__)

std::vector<std::string> detect() {
  const struct {
    const char* name;
    const char* sysctl;
  } kFeatures[] = {
      {"neon", "hw.optional.AdvSIMD"},       {"dotprod", "hw.optional.arm.FEAT_DotProd"},
      {"fp16", "hw.optional.arm.FEAT_FP16"}, {"i8mm", "hw.optional.arm.FEAT_I8MM"},
      {"bf16", "hw.optional.arm.FEAT_BF16"},
  };
  std::vector<std::string> names;
  for (const auto& feature : kFeatures) {
    std::int32_t value = 0;
    std::size_t size = sizeof(value);
    // An unknown name is an error, which means that the feature is absent.
    if (sysctlbyname(feature.sysctl, &value, &size, nullptr, 0) == 0 && value != 0) {
      names.emplace_back(feature.name);
    }
  }
  return names;
}

#else

std::vector<std::string> detect() { return {}; }

#endif

}  // namespace

std::vector<std::string> cpu_features() {
  std::vector<std::string> names = detect();
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace pellucid
