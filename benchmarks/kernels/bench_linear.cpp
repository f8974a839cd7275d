// Linear layers of the qwen2.5-0.5b shape, beside the ceilings of this machine as they are now.
//
//   bench_linear [--isa avx512] [--formats int8,int4,bf16,f32] [--rows 1,8,512] [--threads 1,2]
//                [--shapes qkv,o,gate_up,down,head] [--seconds 0.1]
//
// Weights come from memory: as many copies as do not fit in a cache are used in turn. GB/s counts
// their bytes, Gop/s two operations per weight and row; each beside its share of the ceiling.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "isa.h"
#include "linear.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kColdBytes = std::int64_t{256} << 20;  // far more than the caches hold

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Threads that meet: what the engine's pool does, in its simplest form.
class SpinBarrier {
 public:
  explicit SpinBarrier(int num_threads) : num_threads_(num_threads) {}
  void wait() {
    const int epoch = epoch_.load();
    if (num_arrived_.fetch_add(1) + 1 == num_threads_) {
      num_arrived_.store(0);
      epoch_.fetch_add(1);
    }
    while (epoch_.load() == epoch) {
    }
  }

 private:
  const int num_threads_;
  std::atomic<int> num_arrived_{0};
  std::atomic<int> epoch_{0};
};

// Seconds of one call of `body(thread, call)` on all threads: the best of as many as fit in
// `seconds`, for ceilings and kernels alike, so that other load on the machine hides neither.
double measure(int num_threads, double seconds, const std::function<void(int, int)>& body) {
  SpinBarrier barrier(num_threads);
  std::atomic<bool> is_done{false};
  std::vector<double> times;
  const auto run = [&](int thread) {
    const double begin = now();
    for (int call = 0; !is_done; ++call) {
      barrier.wait();
      const double start = now();
      body(thread, call);
      barrier.wait();
      if (thread == 0) {
        times.push_back(now() - start);
        is_done = now() - begin > seconds && times.size() >= 3;
      }
      barrier.wait();
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(run, thread);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return *std::min_element(times.begin(), times.end());
}

struct Ceilings {
  double bytes, int8, bf16, f32;  // per second

  double operations(const PackedMatrix& w) const {
    if (w.activations() == Activations::kF32) return f32;
    if (format_info(w.format()).is_integer) return int8;
    return w.format() == Format::kBF16 ? bf16 : f32;
  }
};

Ceilings measure_ceilings(const PeakKernels& peaks, int num_threads, double seconds) {
  const auto rate = [&](std::int64_t (*kernel)(std::int64_t)) {
    constexpr std::int64_t kRounds = 100000;
    const double time = measure(num_threads, seconds, [&](int, int) { kernel(kRounds); });
    return static_cast<double>(kernel(kRounds)) * num_threads / time;
  };
  constexpr std::int64_t kCallBytes = std::int64_t{8} << 20;
  AlignedBuffer memory(kColdBytes);
  std::memset(memory.data(), 1, memory.size());  // or all of it is the system's one page of zeros
  const std::int64_t share = kCallBytes / num_threads / 1024 * 1024;
  const double time = measure(num_threads, 3 * seconds, [&](int thread, int call) {
    peaks.read(memory.data() + call * kCallBytes % kColdBytes + thread * share, share);
  });
  return {static_cast<double>(share * num_threads) / time, rate(peaks.int8), rate(peaks.bf16),
          rate(peaks.f32)};
}

struct Shape {
  const char* name;
  std::int64_t num_outputs, num_inputs;
};

constexpr Shape kShapes[] = {{"qkv", 1152, 896},
                             {"o", 896, 896},
                             {"gate_up", 9728, 896},
                             {"down", 896, 4864},
                             {"head", 151936, 896}};

// As many copies of a random matrix as do not fit in a cache.
std::vector<PackedMatrix> random_matrices(Format format, const Shape& shape, std::mt19937& random) {
  const FormatInfo& info = format_info(format);
  std::vector<std::uint32_t> words(shape.num_outputs * shape.num_inputs * source_bits(info) / 32);
  // No exponents of infinity and NaN, whatever the format.
  for (std::uint32_t& word : words) word = random() & 0x3fff3fff;
  const std::int64_t num_groups = shape.num_outputs * shape.num_inputs / 16;  // at most
  const std::vector<std::uint32_t> scales(num_groups, 0x1c001c00);            // f16 or f32
  const std::vector<std::uint8_t> zero_points(num_groups, 8);
  const std::vector<float> minimums(num_groups, -0.01f);
  std::vector<PackedMatrix> copies;
  std::int64_t num_bytes = 0;
  while (num_bytes < kColdBytes) {
    PackedMatrix& w = copies.emplace_back(format, shape.num_outputs, shape.num_inputs);
    w.pack({words.data(), scales.data(), zero_points.data(), minimums.data()}, 0, w.num_panels());
    num_bytes += static_cast<std::int64_t>(w.num_bytes());
  }
  return copies;
}

// Panels a thread takes at a time: enough to be worth an atomic, few enough to share evenly.
std::int64_t panel_grain(const PackedMatrix& w, int num_threads) {
  return std::max<std::int64_t>(1, w.num_panels() / (num_threads * 8));
}

void bench(const KernelTable& kernels, const Shape& shape, const std::vector<PackedMatrix>& copies,
           std::int64_t num_rows, int num_threads, const Ceilings& ceilings, double seconds) {
  const PackedMatrix& first = copies[0];
  const std::vector<float> x(num_rows * shape.num_inputs, 0.5f);
  std::vector<float> y(num_rows * shape.num_outputs);
  AlignedBuffer scratch(linear_scratch_bytes(first, num_rows));
  const std::int64_t grain = panel_grain(first, num_threads);
  SpinBarrier prepared(num_threads);
  std::atomic<std::int64_t> next_panel{0};
  const double time = measure(num_threads, seconds, [&](int thread, int call) {
    const PackedMatrix& w = copies[call % copies.size()];
    if (thread == 0) next_panel = 0;
    linear_prepare(kernels, w, x.data(), shape.num_inputs, num_rows * thread / num_threads,
                   num_rows * (thread + 1) / num_threads, scratch.data());
    prepared.wait();
    std::int64_t panel;
    while ((panel = next_panel.fetch_add(grain)) < w.num_panels()) {
      linear_compute(kernels, w, scratch.data(), 0, num_rows, panel,
                     std::min(panel + grain, w.num_panels()), {y.data(), shape.num_outputs});
    }
  });
  const double bytes = static_cast<double>(first.num_bytes()) / time;
  const double operations =
      2.0 * static_cast<double>(num_rows * shape.num_outputs * shape.num_inputs) / time;
  std::printf(
      "%-13s %-8s %5lld rows %d threads %9.1f us %6.1f GB/s %4.0f %% %7.1f Gop/s %4.0f %%\n",
      format_info(first.format()).name, shape.name, static_cast<long long>(num_rows), num_threads,
      time * 1e6, bytes / 1e9, 100 * bytes / ceilings.bytes, operations / 1e9,
      100 * operations / ceilings.operations(first));
  std::fflush(stdout);
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

struct Options {
  std::string isa;
  std::vector<std::string> formats = {"int8", "int4", "bf16", "f32"};
  std::vector<std::string> shapes = {"qkv", "o", "gate_up", "down", "head"};
  std::vector<std::string> rows = {"1", "2", "4", "8", "16", "32", "64", "512"};
  std::vector<std::string> threads = {"1", "2"};
  double seconds = 0.1;
};

// Exits with a message at what it does not know.
Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--isa") {
      options.isa = value;
    } else if (name == "--formats") {
      options.formats = split(value);
    } else if (name == "--shapes") {
      options.shapes = split(value);
    } else if (name == "--rows") {
      options.rows = split(value);
    } else if (name == "--threads") {
      options.threads = split(value);
    } else if (name == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else {
      std::fprintf(stderr,
                   "%s: allowed are --isa, --formats, --shapes, --rows, --threads, --seconds\n",
                   name.c_str());
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const KernelTable* const kernels = find_kernel_table(options.isa);
  if (kernels == nullptr) {
    std::fprintf(stderr, "this machine has no kernels for %s\n", options.isa.c_str());
    return 1;
  }
  std::vector<Ceilings> ceilings;
  for (const std::string& threads : options.threads) {
    ceilings.push_back(
        measure_ceilings(kernels->peaks, std::atoi(threads.c_str()), options.seconds));
    const Ceilings& c = ceilings.back();
    std::printf("%s, %s threads: %.1f GB/s, int8 %.0f, bf16 %.0f, f32 %.0f Gop/s\n", kernels->isa,
                threads.c_str(), c.bytes / 1e9, c.int8 / 1e9, c.bf16 / 1e9, c.f32 / 1e9);
  }
  std::mt19937 random(1);
  for (int format = 0; format < kNumFormats; ++format) {
    if (!contains(options.formats, kFormatInfo[format].name)) continue;
    for (const Shape& shape : kShapes) {
      if (!contains(options.shapes, shape.name)) continue;
      const std::vector<PackedMatrix> copies =
          random_matrices(static_cast<Format>(format), shape, random);
      for (const std::string& rows : options.rows) {
        for (std::size_t t = 0; t < options.threads.size(); ++t) {
          bench(*kernels, shape, copies, std::atoll(rows.c_str()),
                std::atoi(options.threads[t].c_str()), ceilings[t], options.seconds);
        }
      }
    }
  }
}
