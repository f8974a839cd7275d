// Facts about the processor: the instructions that kernels may use, the sizes of the caches, and
// the number of threads that the process may keep busy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pellucid {

struct CacheLevel {
  int level;                // 1 is L1d; instruction caches are left out
  std::int64_t size_bytes;  // of one instance
  int num_sharing_cpus;     // logical CPUs that share one instance
};

// The limit that determines `CpuThreads::num_threads`.
enum class ThreadLimit { kCores, kFastCores, kAffinity, kQuota };

struct CpuThreads {
  int num_logical_cpus;             // online in the machine
  int num_physical_cores;           // distinct cores among them
  int num_allowed_cpus;             // logical CPUs in this thread's affinity mask
  int num_allowed_cores;            // distinct cores among those
  int num_fast_cores;               // of these, the ones about as fast as the fastest
  std::optional<double> cpu_quota;  // CPUs' worth of time the cgroups grant; empty: no limit
  int num_threads;                  // compute threads to start: min(fast cores, ceil(quota)) >= 1
  ThreadLimit thread_limit;  // what set num_threads: the machine, slow cores, the mask, the quota
};

// Instruction set extensions that both the processor and the operating system support, sorted.
// x86 names are those of Linux's /proc/cpuinfo; Arm ones are "neon", "dotprod", "i8mm", "bf16",
// "fp16" and "sve".
std::vector<std::string> cpu_features();

// Data and unified caches of one CPU, L1 first; empty where the system does not report them. `root`
// is put in front of every path, so that tests can describe a machine in files of their own. Other
// callers pass "".
std::vector<CacheLevel> cpu_caches(const std::string& root);

// Whether Linux gives huge pages to a process that asks for them; empty where the system does not
// say.
std::optional<bool> huge_pages(const std::string& root);

// Affinity and cgroup limits as they are now: a container's quota can change while it runs.
CpuThreads cpu_threads(const std::string& root);

}  // namespace pellucid
