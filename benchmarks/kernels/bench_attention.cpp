// Attention of one layer over the paged cache, beside the ceilings of this machine as they are now.
//
//   bench_attention [--isa avx512] [--threads 2] [--format f32|bf16|int8|int4] [--seconds 0.2]
//
// decode: one token after `depth` others; K and V come from memory, for as many layers as do not
// fit in a cache are used in turn; GB/s counts their bytes, scales included. prefill: a whole
// prompt; Gop/s counts two operations per number of every pair of a query and a key that it sees.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention.h"
#include "isa.h"
#include "open_groups.h"
#include "roofline.h"
#include "thread_pool.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kColdBytes = std::int64_t{96} << 20;  // far more than the caches hold
constexpr std::int64_t kBlockSize = 32;

struct Shape {
  const char* name;
  std::int64_t num_heads, num_kv_heads, head_dim;
};

constexpr Shape kShapes[] = {{"qwen2.5-0.5b", 14, 2, 64}, {"llama-3.2-1b", 32, 8, 64}};

struct Options {
  std::string isa;
  int num_threads = 2;
  std::string format = "bf16";
  double seconds = 0.2;
};

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Seconds of one layer of a step in which `batch` requests of `seq_len` tokens each contribute
// their last `q_len`: the fastest of as many as fit in the time, as for the ceilings.
double measure_layer(const KernelTable& kernels, ThreadPool& pool, const Options& options,
                     KVFormat format, const Shape& shape, std::int64_t batch, std::int64_t seq_len,
                     std::int64_t q_len) {
  const std::int64_t blocks_per_request = (seq_len + kBlockSize - 1) / kBlockSize;
  const std::int64_t num_blocks = batch * blocks_per_request;
  KVShape kv_shape{format, kBlockSize, {{1, shape.num_kv_heads, shape.head_dim}}};
  std::int64_t& num_layers = kv_shape.groups[0].num_layers;
  num_layers =
      std::clamp<std::int64_t>(kColdBytes / (num_blocks * kv_bytes_per_block(kv_shape)), 1, 512);
  KVCache cache(kv_shape, num_blocks, {batch, batch * q_len, false});

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(
      static_cast<std::size_t>(q_len * batch * shape.num_heads * shape.head_dim));
  for (float& x : numbers) x = normal(random);
  std::vector<float> y(numbers.size());
  std::vector<std::int32_t> tables(static_cast<std::size_t>(num_blocks));
  std::iota(tables.begin(), tables.end(), 0);
  std::vector<std::int32_t> query_start, seq_lens;
  for (std::int64_t b = 0; b <= batch; ++b) {
    query_start.push_back(static_cast<std::int32_t>(b * q_len));
  }
  seq_lens.assign(static_cast<std::size_t>(batch), static_cast<std::int32_t>(seq_len));

  // The same token in every slot: what the numbers are does not matter, as long as they are finite.
  std::vector<float> token(static_cast<std::size_t>(shape.num_kv_heads * shape.head_dim));
  for (float& x : token) x = normal(random);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_blocks * kBlockSize));
  std::iota(slots.begin(), slots.end(), 0);
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    for (const std::int64_t slot : slots) {
      const OpenGroups open{0, slot, slot / kOpenTokens, 0};
      store_kv(kernels, format, cache.layer({layer}),
               {token.data(), token.data(), 0, &slot, &open, slot}, 1, 0, shape.num_kv_heads);
    }
  }
  std::vector<std::int32_t> open_slots(static_cast<std::size_t>(batch));
  std::iota(open_slots.begin(), open_slots.end(), 0);
  const std::vector<OpenGroups> open_groups =
      plan_open_groups({batch, query_start.data(), seq_lens.data(), open_slots.data()});

  const AttentionLimits limits{
      q_len * batch,      batch,          seq_len,           shape.num_heads,
      shape.num_kv_heads, shape.head_dim, pool.num_threads()};
  AttentionPlan plan(limits);
  plan.make({batch, query_start.data(), seq_lens.data()}, 0);
  const auto num_items = static_cast<std::int64_t>(plan.items().size());
  const std::size_t scratch_bytes = attention_scratch_bytes(limits);
  AlignedBuffer scratch(scratch_bytes * static_cast<std::size_t>(pool.num_threads()));
  const std::int64_t q_stride = shape.num_heads * shape.head_dim;
  const AttentionArrays arrays{numbers.data(), q_stride,           y.data(), q_stride,
                               tables.data(),  blocks_per_request, nullptr,  open_groups.data()};
  const AttentionOptions attention{0.125f, 0, 0};

  double best = 1e9;
  // Many layers per run of single tokens, so that waking the threads does not count.
  const std::int64_t layers_per_run = q_len > 1 ? 1 : std::min<std::int64_t>(num_layers, 16);
  std::int64_t layer = 0;
  for (const double end = now() + options.seconds; now() < end;) {
    const double begin = now();
    pool.run([&](Worker& worker) {
      for (std::int64_t i = 0; i < layers_per_run; ++i) {
        const KVView view = cache.layer({(layer + i) % num_layers});
        worker.parallel_for(num_items, 1, [&](std::int64_t first, std::int64_t last) {
          run_attention(kernels, format, view, plan, attention, arrays, first, last,
                        scratch.data() + scratch_bytes * static_cast<std::size_t>(worker.index()));
        });
      }
    });
    best = std::min(best, (now() - begin) / static_cast<double>(layers_per_run));
    layer += layers_per_run;
  }
  return best;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--isa") {
      options.isa = value;
    } else if (name == "--threads") {
      options.num_threads = std::atoi(value.c_str());
    } else if (name == "--format") {
      options.format = value;
    } else if (name == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else {
      std::fprintf(stderr, "%s: unknown; see the top of bench_attention.cpp\n", name.c_str());
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const KernelTable* const kernels = find_kernel_table(options.isa);
  const std::optional<KVFormat> format = find_kv_format(options.format);
  if (kernels == nullptr || !format || options.num_threads < 1) {
    std::fprintf(stderr, "this machine has no such ISA, or there is no such format\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ThreadPool pool(options.num_threads);
  const Roofline roofline = measure_roofline(*kernels, pool);
  std::printf("%s, %s, %d threads: %.1f GB/s, %.0f Gop/s bf16, %.0f f32, %.0f int8\n", kernels->isa,
              options.format.c_str(), options.num_threads, roofline.read_bytes_per_second * 1e-9,
              roofline.bf16_flops_per_second * 1e-9, roofline.f32_flops_per_second * 1e-9,
              roofline.int8_ops_per_second * 1e-9);
  double peak = roofline.bf16_flops_per_second;
  if (*format == KVFormat::kF32) peak = roofline.f32_flops_per_second;
  if (*format >= KVFormat::kInt8) peak = roofline.int8_ops_per_second;

  for (const Shape& shape : kShapes) {
    const double token_bytes =
        static_cast<double>(
            kv_bytes_per_block({*format, kBlockSize, {{1, shape.num_kv_heads, shape.head_dim}}})) /
        static_cast<double>(kBlockSize);
    for (const std::int64_t batch : {1, 8}) {
      for (const std::int64_t depth : {512, 2048, 8192}) {
        const double seconds =
            measure_layer(*kernels, pool, options, *format, shape, batch, depth, 1);
        const double rate = static_cast<double>(batch * depth) * token_bytes / seconds;
        std::printf("%-14s decode  batch %lld depth %5lld  %8.1f us  %6.1f GB/s  %5.1f %%\n",
                    shape.name, static_cast<long long>(batch), static_cast<long long>(depth),
                    seconds * 1e6, rate * 1e-9, 100 * rate / roofline.read_bytes_per_second);
      }
    }
    for (const std::int64_t length : {512, 2048}) {
      const double seconds =
          measure_layer(*kernels, pool, options, *format, shape, 1, length, length);
      const double ops = 4.0 * static_cast<double>(shape.num_heads * shape.head_dim) *
                         static_cast<double>(length * (length + 1) / 2);
      std::printf("%-14s prefill               %5lld  %8.1f us  %6.1f Gop/s %5.1f %%\n", shape.name,
                  static_cast<long long>(length), seconds * 1e6, ops / seconds * 1e-9,
                  100 * ops / seconds / peak);
    }
  }
}
