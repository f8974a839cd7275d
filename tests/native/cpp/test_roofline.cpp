// The machine's peaks from kernels and a clock that count: what is divided by what, and the work of
// the kernels that are timed.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "kernels/peak_table.h"
#include "roofline.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kTicks = 1 << 20;  // of a second

std::atomic<std::int64_t> ticks, num_calls, num_bytes;
std::int64_t round_ticks;

double counted_seconds() { return static_cast<double>(ticks) / kTicks; }

// Ten operations a round; every third call takes twice as long.
std::int64_t run_rounds(std::int64_t num_rounds) {
  ticks += num_rounds * round_ticks * (num_calls++ % 3 == 0 ? 2 : 1);
  return 10 * num_rounds;
}

void read_bytes(const void*, std::int64_t size) {
  ticks += size / 1024;
  num_bytes += size;
  CHECK(size % 1024 == 0);
}

// The fastest run counts, of those of 0.3 s, which are five at least. A run takes 2 ms or more.
void the_fastest_run_counts() {
  const KernelTable kernels{"", {}, {run_rounds, run_rounds, run_rounds, read_bytes}, {}, {}, {},
                            {}, {}};
  struct Case {
    int num_threads;
    std::int64_t round_ticks, num_calls;
    double operations_per_tick;
  };
  for (const Case& own :
       {Case{1, 1, 247, 10.0}, {1, 1024, 21, 10.0 / 1024}, {3, 1, 248, 30.0 / 4}}) {
    ThreadPool pool(own.num_threads);
    ticks = num_calls = num_bytes = 0;
    round_ticks = own.round_ticks;
    const Roofline roofline = measure_roofline(kernels, pool, counted_seconds);
    for (const double per_second : {roofline.int8_ops_per_second, roofline.bf16_flops_per_second,
                                    roofline.f32_flops_per_second}) {
      CHECK(per_second == own.operations_per_tick * kTicks);
    }
    CHECK(num_calls == own.num_calls && roofline.read_bytes_per_second == 1024.0 * kTicks);
    CHECK(num_bytes / 5 > (256 << 20) - 4096 && num_bytes / 5 <= std::int64_t{2} << 30);
  }
}

// Vectors that count what is done with them.
struct Counted {
  static constexpr int kLanes = 4;
  using F32 = float;
  using I32 = std::int32_t;
  static inline std::int64_t num_products = 0, num_loads = 0;
  static inline std::vector<const float*> read;

  static I32 zero_i32() { return 0; }
  static I32 broadcast_i32(int x) { return x; }
  static F32 broadcast(float x) { return ++num_loads, x; }
  static I32 broadcast_quad(const std::int8_t* p) { return ++num_loads, *p; }
  static F32 broadcast_pair(const std::uint16_t* p) { return ++num_loads, *p; }
  template <int kBits>
  static I32 dot(I32 sum, I32, I32) {
    return num_products += 4 * kLanes, sum;
  }
  static F32 dot_bf16(F32 sum, F32, F32) { return num_products += 2 * kLanes, sum; }
  static F32 fma(F32, F32, F32 sum) { return num_products += kLanes, sum; }
  static F32 load(const float* p) { return read.push_back(p), 0; }
  static I32 max_abs_bits(I32 seen, F32) { return seen; }
};

// A product and its addition are two operations. Memory is read in four streams.
void peaks_do_what_they_count() {
  constexpr PeakKernels kPeaks = peak_kernels<Counted>();
  for (const auto peak : {kPeaks.int8, kPeaks.bf16, kPeaks.f32}) {
    Counted::num_products = Counted::num_loads = 0;
    const std::int64_t num_operations = peak(7);
    CHECK(num_operations > 0 && num_operations == 2 * Counted::num_products);
    CHECK(Counted::num_loads % kNumChains == 7);  // the chains may begin with one each
  }
  const std::vector<float> memory(512);
  kPeaks.read(memory.data(), 2048);
  CHECK(Counted::read.size() == 128);
  for (std::size_t i = 0; i < 128; ++i) {
    CHECK(Counted::read[i] == memory.data() + i % 4 * 128 + i / 4 * 4);
  }
}

}  // namespace

int main() {
  the_fastest_run_counts();
  peaks_do_what_they_count();
  std::printf("ok\n");
}
