// What the engine needs to know about the processor it runs on: which instructions it may use, how
// large its caches are, and how many threads it may keep busy.
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

// What bounds `CpuThreads::num_threads`.
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

// Data and unified caches of one CPU, L1 first; empty where the system does not tell. `root` stands
// in front of every path that is read, so that tests can lay out a machine of their own; a real
// caller passes "".
std::vector<CacheLevel> cpu_caches(const std::string& root);

// Whether Linux backs memory with huge pages that asks for them; empty where nothing is told of it.
std::optional<bool> huge_pages(const std::string& root);

// Affinity and cgroup limits as they are now: a container's quota can change while it runs.
CpuThreads cpu_threads(const std::string& root);

}  // namespace pellucid
