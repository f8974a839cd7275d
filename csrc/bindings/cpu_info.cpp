// Python's CpuInfo and CacheLevel: instruction sets, caches and cores of the machine.
#include "cpu_info.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

struct CpuInfo {
  std::vector<std::string> features;
  std::vector<CacheLevel> caches;
  CpuThreads threads;
  std::optional<bool> huge_pages;
};

CpuInfo cpu_info(const std::string& root) {
  return {cpu_features(), cpu_caches(root), cpu_threads(root), huge_pages(root)};
}

const char* thread_limit_name(ThreadLimit limit) {
  switch (limit) {
    case ThreadLimit::kCores:
      return "cores";
    case ThreadLimit::kFastCores:
      return "fast_cores";
    case ThreadLimit::kAffinity:
      return "affinity";
    case ThreadLimit::kQuota:
      return "quota";
  }
  return "";
}

nb::frozenset feature_set(const CpuInfo& self) {
  nb::list names;
  for (const std::string& name : self.features) names.append(name);
  return nb::frozenset(names);
}

nb::tuple cache_tuple(const CpuInfo& self) {
  nb::list caches;
  for (const CacheLevel& cache : self.caches) caches.append(cache);
  return nb::tuple(caches);
}

}  // namespace

void bind_cpu_info(nb::module_& m) {
  nb::class_<CacheLevel>(m, "CacheLevel", "One data or unified cache of a CPU.")
      .def_ro("level", &CacheLevel::level, "1 for L1d, 2 for L2, 3 for L3.")
      .def_ro("size_bytes", &CacheLevel::size_bytes, "Bytes in one instance of this cache.")
      .def_ro("num_sharing_cpus", &CacheLevel::num_sharing_cpus,
              "Logical CPUs that share one instance.")
      .def("__repr__", [](const CacheLevel& self) {
        return nb::str("CacheLevel(level={}, size_bytes={}, num_sharing_cpus={})")
            .format(self.level, self.size_bytes, self.num_sharing_cpus);
      });

  // Python sees one flat object: the fields of `threads` are attributes of the class itself.
  const auto thread_count = [](int CpuThreads::* member) {
    return [member](const CpuInfo& self) { return self.threads.*member; };
  };
  nb::class_<CpuInfo>(m, "CpuInfo",
                      "What this process may use of the processor, read when cpu_info() is called.")
      .def_prop_ro("features", &feature_set, nb::sig("def features(self) -> frozenset[str]"),
                   "Instruction set extensions that processor and operating system both support, "
                   "by Linux's names on x86 (\"avx2\", \"avx512_vnni\") and as \"neon\", "
                   "\"dotprod\", \"i8mm\", \"bf16\", \"fp16\", \"sve\" on Arm.")
      .def_prop_ro("caches", &cache_tuple, nb::sig("def caches(self) -> tuple[CacheLevel, ...]"),
                   "Data and unified caches of one CPU, L1 first; empty if the system hides them.")
      .def_prop_ro("num_logical_cpus", thread_count(&CpuThreads::num_logical_cpus),
                   "Logical CPUs online in the machine.")
      .def_prop_ro("num_physical_cores", thread_count(&CpuThreads::num_physical_cores),
                   "Distinct cores among the logical CPUs of the machine.")
      .def_prop_ro("num_allowed_cpus", thread_count(&CpuThreads::num_allowed_cpus),
                   "Logical CPUs in the calling thread's affinity mask.")
      .def_prop_ro("num_allowed_cores", thread_count(&CpuThreads::num_allowed_cores),
                   "Distinct cores in the affinity mask.")
      .def_prop_ro("num_fast_cores", thread_count(&CpuThreads::num_fast_cores),
                   "Of these, the ones about as fast as the fastest.")
      .def_prop_ro(
          "cpu_quota", [](const CpuInfo& self) { return self.threads.cpu_quota; },
          "CPUs' worth of time that the process's cgroups grant, the tightest limit on the way to "
          "the root (1.5 is 150 ms in each 100 ms); None without a limit.")
      .def_prop_ro("num_threads", thread_count(&CpuThreads::num_threads),
                   "Compute threads to start: min(num_fast_cores, ceil(cpu_quota)), at least 1.")
      .def_prop_ro(
          "thread_limit",
          [](const CpuInfo& self) { return thread_limit_name(self.threads.thread_limit); },
          nb::sig("def thread_limit(self) -> typing.Literal['cores', 'fast_cores', 'affinity', "
                  "'quota']"),
          "What num_threads is bounded by: the machine's cores, the fast ones among them, the "
          "affinity mask or the quota.")
      .def_prop_ro(
          "huge_pages", [](const CpuInfo& self) { return self.huge_pages; },
          "Whether Linux backs memory with huge pages that asks for them; None where nothing is "
          "told of it.")
      .def("__repr__", [](const CpuInfo& self) {
        return nb::str("CpuInfo(num_threads={}, thread_limit={!r}, caches={}, features={})")
            .format(self.threads.num_threads, thread_limit_name(self.threads.thread_limit),
                    cache_tuple(self), feature_set(self));
      });

  m.def(
      "cpu_info", &cpu_info, "root"_a = "",
      "Look at the processor, the affinity mask and the cgroups as they are now. `root` stands in "
      "front of every path read below /proc and /sys, so that tests can describe a machine.");
}

}  // namespace pellucid
