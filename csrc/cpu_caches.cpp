// The sizes of the processor's caches, from /sys, sysctl or CPUID.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu_info.h"
#include "text_files.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace pellucid {
namespace {

#if defined(__APPLE__)

std::optional<std::int64_t> sysctl_int(const char* name) {
  std::int64_t value = 0;  // the kernel writes 4 or 8 bytes; on little endian both give the number
  std::size_t size = sizeof(value);
  if (sysctlbyname(name, &value, &size, nullptr, 0) != 0) return std::nullopt;
  return value;
}

// Reads the fastest kind of core ("perflevel0"), on which compute threads run. Intel Macs have one
// kind of core, under the names without "perflevel0".
std::vector<CacheLevel> system_caches(const std::string&) {
  const struct {
    int level;
    const char* size;
    const char* plain_size;
    const char* sharing;
  } kLevels[] = {
      {1, "hw.perflevel0.l1dcachesize", "hw.l1dcachesize", nullptr},
      {2, "hw.perflevel0.l2cachesize", "hw.l2cachesize", "hw.perflevel0.cpusperl2"},
      {3, "hw.perflevel0.l3cachesize", "hw.l3cachesize", "hw.perflevel0.cpusperl3"},
  };
  std::vector<CacheLevel> caches;
  for (const auto& level : kLevels) {
    std::optional<std::int64_t> size = sysctl_int(level.size);
    if (!size) size = sysctl_int(level.plain_size);
    if (!size || *size <= 0) continue;
    const std::int64_t sharing = level.sharing ? sysctl_int(level.sharing).value_or(1) : 1;
    caches.push_back({level.level, *size, static_cast<int>(std::max<std::int64_t>(sharing, 1))});
  }
  return caches;
}

#else

// Reads /sys/devices/system/cpu/cpu0/cache/index*/, where the kernel gives the same facts as CPUID,
// but counts only CPUs that exist. CPU 0 stands for all: it is a fast core on hybrid processors.
std::vector<CacheLevel> system_caches(const std::string& root) {
  std::vector<CacheLevel> caches;
  for (int index = 0;; ++index) {
    const std::string folder =
        root + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const auto type = read_text_file(folder + "type");
    if (!type) return caches;
    if (trim(*type) == "Instruction") continue;
    const auto level = parse_int(read_text_file(folder + "level").value_or(""));
    const auto size = parse_size(read_text_file(folder + "size").value_or(""));
    const auto cpus = parse_cpu_list(read_text_file(folder + "shared_cpu_list").value_or(""));
    if (!level || *level < 1 || *level > 4 || !size || *size == 0 || !cpus) continue;
    caches.push_back({static_cast<int>(*level), *size, static_cast<int>(cpus->size())});
  }
}

#endif

#if defined(__x86_64__)

// Intel and AMD describe caches in the same layout under different leaves.
std::vector<CacheLevel> cpuid_caches() {
  constexpr unsigned kIntelLeaf = 0x4;
  constexpr unsigned kAmdLeaf = 0x8000001d;
  std::vector<CacheLevel> caches;
  for (const unsigned leaf : {kIntelLeaf, kAmdLeaf}) {
    for (unsigned subleaf = 0; subleaf < 16; ++subleaf) {
      unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
      if (!__get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx)) break;
      enum { kEnd = 0, kData = 1, kInstruction = 2, kUnified = 3 };
      const unsigned type = eax & 0x1f;
      if (type == kEnd) break;
      if (type == kInstruction) continue;
      const std::int64_t num_ways = (ebx >> 22) + 1;
      const std::int64_t num_partitions = ((ebx >> 12) & 0x3ff) + 1;
      const std::int64_t line_bytes = (ebx & 0xfff) + 1;
      const std::int64_t num_sets = std::int64_t{ecx} + 1;
      // An upper bound: CPUID counts reserved ids, not the CPUs that exist.
      const int num_sharing_cpus = static_cast<int>((eax >> 14) & 0xfff) + 1;
      caches.push_back({static_cast<int>((eax >> 5) & 0x7),
                        num_ways * num_partitions * line_bytes * num_sets, num_sharing_cpus});
    }
    if (!caches.empty()) break;
  }
  return caches;
}

#else

std::vector<CacheLevel> cpuid_caches() { return {}; }

#endif

}  // namespace

std::vector<CacheLevel> cpu_caches(const std::string& root) {
  std::vector<CacheLevel> caches = system_caches(root);
  if (caches.empty()) caches = cpuid_caches();
  std::sort(caches.begin(), caches.end(),
            [](const CacheLevel& a, const CacheLevel& b) { return a.level < b.level; });
  return caches;
}

}  // namespace pellucid
