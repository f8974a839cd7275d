// Measures the machine's memory bandwidth and its peak operations per second.
#include "roofline.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "aligned_buffer.h"
#include "cpu_info.h"

namespace pellucid {
namespace {

constexpr double kSecondsPerCeiling = 0.3;
constexpr double kSecondsPerRun =
    2e-3;  // much longer than starting a run, much shorter than a time slice
constexpr int kMinRuns = 5;
constexpr std::int64_t kReadUnit = 1024;  // what PeakKernels::read takes a multiple of

// A multiple of all last-level caches together, so that no byte is still cached in the next pass.
constexpr std::int64_t kCachesRead = 4;
constexpr std::int64_t kMinRead = std::int64_t{256} << 20;
constexpr std::int64_t kMaxRead = std::int64_t{2} << 30;

// Seconds of the fastest of many runs of body(thread) on all threads.
template <class Body>
double fastest_run(ThreadPool& pool, Clock now, const Body& body) {
  double fastest = std::numeric_limits<double>::infinity();
  const double end = now() + kSecondsPerCeiling;
  for (int run = 0; run < kMinRuns || now() < end; ++run) {
    const double start = now();
    pool.run([&](Worker& worker) { body(worker.index()); });
    fastest = std::min(fastest, now() - start);
  }
  return fastest;
}

using PeakKernel = std::int64_t (*)(std::int64_t num_rounds);

double operations_per_second(ThreadPool& pool, Clock now, PeakKernel kernel) {
  std::int64_t num_rounds = 1000;
  double seconds;
  do {
    num_rounds *= 2;
    const double start = now();
    kernel(num_rounds);
    seconds = now() - start;
  } while (seconds < kSecondsPerRun);
  const std::int64_t operations = pool.num_threads() * kernel(num_rounds);
  return static_cast<double>(operations) / fastest_run(pool, now, [&](int) { kernel(num_rounds); });
}

std::int64_t last_level_bytes() {
  const std::vector<CacheLevel> caches = cpu_caches("");
  if (caches.empty()) return 0;
  const CacheLevel& last = caches.back();
  const int num_instances =
      (cpu_threads("").num_logical_cpus + last.num_sharing_cpus - 1) / last.num_sharing_cpus;
  return last.size_bytes * num_instances;
}

double read_bytes_per_second(ThreadPool& pool, Clock now, const PeakKernels& peaks) {
  const std::int64_t wanted = std::clamp(kCachesRead * last_level_bytes(), kMinRead, kMaxRead);
  const std::int64_t share = wanted / pool.num_threads() / kReadUnit * kReadUnit;
  const std::int64_t total = share * pool.num_threads();
  AlignedBuffer memory(static_cast<std::size_t>(total));
  std::memset(memory.data(), 1, memory.size());  // unwritten memory is one shared page of zeros
  const double seconds = fastest_run(
      pool, now, [&](int thread) { peaks.read(memory.data() + thread * share, share); });
  return static_cast<double>(total) / seconds;
}

}  // namespace

Roofline measure_roofline(const KernelTable& kernels, ThreadPool& pool, Clock now) {
  const PeakKernels& peaks = kernels.peaks;
  return {read_bytes_per_second(pool, now, peaks), operations_per_second(pool, now, peaks.int8),
          operations_per_second(pool, now, peaks.bf16),
          operations_per_second(pool, now, peaks.f32)};
}

}  // namespace pellucid
