// What is prefetched, which no result shows. While attention computes over a range of keys, it
// prefetches the range that comes next: a share at each step, of as many steps as it told the
// prefetcher. Before, it prefetches rows of queries and of results. While a thread waits for
// others, it prefetches the weights of its next stage.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "attention.h"
#include "check.h"
#include "clock.h"
#include "isa.h"
#include "kernels/stream_prefetcher.h"
#include "kernels/tile_prefetcher.h"
#include "kv_cache.h"
#include "program_experts.h"
#include "program_ops.h"
#include "weight_prefetcher.h"

namespace pellucid {
namespace {

std::int64_t num_steps_told, num_steps_taken;
std::vector<std::int64_t> ranges;  // the first positions of those to prefetch; -1: none

struct CountedSteps {
  CountedSteps(const KVView&, const KeyRange& range, std::int64_t num_steps) {
    num_steps_told += num_steps;
    ranges.push_back(range.num_tiles > 0 ? range.first_position : -1);
  }
  CountedSteps(const std::uint8_t*, std::int64_t, std::int64_t num_steps) {
    num_steps_told += num_steps;
  }
  void step() { ++num_steps_taken; }
};

std::vector<std::pair<const void*, bool>> rows_fetched;  // lines, and whether to be written

void note_row(const void* address, bool is_written = false) {
  rows_fetched.emplace_back(address, is_written);
}

double seconds;  // at each look at the clock one more

double next_second() { return ++seconds; }

using Span = std::pair<const std::uint8_t*, std::int64_t>;  // of weights, in bytes

std::mutex noting;
std::map<std::thread::id, std::vector<Span>> noted;  // of each thread, stage by stage

struct NotedWeights {
  void turn_to(const WeightSpan& weights) {
    const std::lock_guard<std::mutex> lock(noting);
    noted[std::this_thread::get_id()].emplace_back(weights.data, weights.num_bytes);
  }
  bool operator()() { return false; }
};

}  // namespace
}  // namespace pellucid

#define StreamPrefetcher CountedSteps
#define TilePrefetcher CountedSteps
#define WeightPrefetcher NotedWeights
#include "kernels/attention_table.h"
#include "kernels/linear_table.h"
#include "kernels/simd_portable.h"

#define seconds_now next_second
#include "program_run.cpp"
#undef seconds_now

#define __builtin_prefetch(...) note_row(__VA_ARGS__)
#include "attention.cpp"
#undef __builtin_prefetch

namespace {

using namespace pellucid;

constexpr AttentionKernels kKernels = attention_kernels<Simd, 2, 2, 1>();
constexpr std::int64_t kBlockSize = 64;

void each_step_prefetches(KVFormat format, std::int64_t head_dim, std::int64_t num_rows) {
  KVCache cache({format, kBlockSize, {{1, 1, head_dim}}}, 1);
  const KVView kv = cache.layer({0});
  const auto size = static_cast<std::size_t>(num_rows * kv.padded_dim);
  std::vector<float> queries(size), scales(size), max(size), total(size), values(size);
  std::vector<std::int32_t> starts(size);
  const QueryRows rows{queries.data(), scales.data(), starts.data(), num_rows, 1, kBlockSize};
  KeyRange keys{};
  for (; keys.num_tiles < kBlockSize / kTileTokens; ++keys.num_tiles) {
    keys.tiles[keys.num_tiles] = kv.tile(0, 0, keys.num_tiles);
  }
  num_steps_told = num_steps_taken = 0;
  kKernels.kernels[static_cast<int>(format)].attend(kv, rows, keys, {}, {1.0f, 0.0f, 0},
                                                    {max.data(), total.data(), values.data()});
  CHECK(num_steps_taken > 0 && num_steps_taken == num_steps_told);
}

// A linear layer's tile of rows, in one or two columns of tiles.
void each_tile_prefetches(Format format, const LinearKernel& kernel, std::int64_t num_rows) {
  const PackedMatrix w(format, 40, 200);
  AlignedBuffer scratch(linear_scratch_bytes(w, num_rows));
  const PreparedRows rows{scratch.data(), 0};
  std::vector<float> y(static_cast<std::size_t>(40 * num_rows));
  num_steps_told = num_steps_taken = 0;
  kernel.compute(w.view(), rows, 0, num_rows, 0, w.num_panels(), {y.data(), 40});
  CHECK(num_steps_taken > 0 && num_steps_taken == num_steps_told);
}

// Two items of three ranges each.
void the_range_that_comes_next_is_prefetched() {
  KernelTable kernels{};
  kernels.attention = kKernels;
  KVCache cache({KVFormat::kF32, 640, {{1, 1, 16}}}, 2);
  AttentionPlan plan({2, 2, 640, 1, 1, 16, 1});
  const std::int32_t query_start[] = {0, 1, 2}, seq_lens[] = {600, 600}, blocks[] = {1, 0};
  plan.make({2, query_start, seq_lens}, 0);
  AlignedBuffer scratch(attention_scratch_bytes(plan.limits()));
  const float q[32] = {};
  float y[32];
  ranges.clear();
  for (const std::int64_t item : {0, 1}) {
    run_attention(kernels, KVFormat::kF32, cache.layer({0}), plan, {1.0f, 0.0f, 0},
                  {q, 16, y, 16, blocks, 1}, item, item + 1, scratch.data());
  }
  CHECK((ranges == std::vector<std::int64_t>{256, 512, 0, 256, 512, -1}));
}

// Eight tokens of three heads: while a row is read, the sixteenth after it is fetched.
void rows_that_come_next_are_prefetched() {
  constexpr std::int64_t kTokens = 8, kHeads = 3, kDim = 40, kStride = 130;
  KernelTable kernels{};
  kernels.attention = kKernels;
  KVCache cache({KVFormat::kF32, 16, {{1, 1, kDim}}}, 1);
  AttentionPlan plan({kTokens, 1, 16, kHeads, 1, kDim, 1});
  const std::int32_t query_start[] = {0, kTokens}, seq_lens[] = {kTokens}, blocks[] = {0};
  plan.make({1, query_start, seq_lens}, 0);
  AlignedBuffer scratch(attention_scratch_bytes(plan.limits()));
  std::vector<float> q(kTokens * kStride), y(kTokens * kStride);
  rows_fetched.clear();
  run_attention(kernels, KVFormat::kF32, cache.layer({0}), plan, {1.0f, 0.0f, 0},
                {q.data(), kStride, y.data(), kStride, blocks, 1}, 0, 1, scratch.data());
  std::vector<std::pair<const void*, bool>> wanted;
  for (std::int64_t row = 16; row < kTokens * kHeads; ++row) {
    const std::int64_t at = row / kHeads * kStride + row % kHeads * kDim;
    for (const std::int64_t d : {0, 16, 32}) {
      wanted.emplace_back(q.data() + at + d, false);
      wanted.emplace_back(y.data() + at + d, true);
    }
  }
  CHECK(rows_fetched == wanted);
}

// Three threads, one row, which chooses experts 1 and 3 of four. A matrix [64, 64] is two panels.
void the_weights_that_come_next_are_prefetched() {
  const auto matrix = [](std::int64_t num_outputs) -> Weights {
    return std::make_shared<LinearWeights>(
        LinearWeights{PackedMatrix(Format::kF32, num_outputs, 64), {}});
  };
  Program program(*find_kernel_table("portable"), std::make_shared<ThreadPool>(3), 1, 0);
  const View x{program.add_buffer(RowSet::kTokens, 64)};
  const View y{program.add_buffer(RowSet::kTokens, 256)};
  const View chosen{program.add_buffer(RowSet::kTokens, 4)};
  program.add_row_phase("fill", RowSet::kTokens, {x.buffer, chosen.buffer},
                        [&](const Step&, std::int64_t r) {
                          for (const int i : {0, 1, 2, 3}) program.row(chosen, r)[i] = i % 2;
                          std::fill_n(program.row(x, r), 64, 1.0f);
                        });
  add_softcap(program, RowSet::kTokens, x, 30.0f, 64, x);
  const Weights first = matrix(256);
  add_linear(program, RowSet::kTokens, x, first, y, false);
  std::vector<Weights> gate, up, down;
  for (auto* const each : {&gate, &up, &down}) {
    for (int i = 0; i < 4; ++i) each->push_back(matrix(64));
  }
  ProgramExperts(program, 4, 2)
      .add_expert_mlp(RowSet::kTokens, x, chosen, {gate, up, down}, ActivationFunction::kSilu, x,
                      false);
  program.finish();
  Step step;
  step.num_tokens = 1;
  program.run(step);
  const std::int64_t size = first->matrix.view().panel_bytes;
  const auto from = [&](const Weights& weights, std::int64_t panel, std::int64_t num_bytes) {
    return Span{weights->matrix.view().panels + panel * size, num_bytes};
  };
  const auto stages = [](Span linear, Span inner, Span outer) {
    return std::vector<Span>{linear, linear, linear, {}, {}, {}, inner, outer, outer, {}, {}};
  };
  const std::vector<Span> all[] = {
      stages(from(first, 0, 8 * size / 3), from(gate[1], 0, 2 * size), from(down[1], 0, 2 * size)),
      stages(from(first, 3, 8 * size / 3), from(up[1], 1, size), from(down[3], 0, 2 * size)),
      stages(from(first, 6, 8 * size / 3), from(up[3], 0, 2 * size), from(down[3], 1, size))};
  CHECK(noted.size() == 3);
  for (const auto& [thread, spans] : noted) {
    CHECK(std::count(std::begin(all), std::end(all), spans) == 1);
    CHECK((spans == all[0]) == (thread == std::this_thread::get_id()));
  }
}

// Which needs one look at the clock for each stage, and one more where threads help each other.
void the_time_of_a_stage_is_its_own() {
  Program program(*find_kernel_table("portable"), std::make_shared<ThreadPool>(1), 16, 0);
  const View x{program.add_buffer(RowSet::kTokens, 4)};
  for (const std::int64_t num_items : {1, 0, 1}) {
    program.add_phase(
        "items", {}, [=](const Step&) { return num_items; }, [](const Step&) { return 1; },
        [](const Step&, const Share&) {});
  }
  program.add_row_phase("rows", RowSet::kTokens, {x.buffer}, [](const Step&, std::int64_t) {});
  add_softcap(program, RowSet::kTokens, x, 30.0f, 4, x);
  program.finish();
  for (const std::int64_t num_tokens : {2, 16}) {
    double of_stages[5];
    Step step;
    step.num_tokens = num_tokens;
    step.stage_seconds = of_stages;
    program.run(step);
    const double helping = num_tokens == 16 ? 1 : 0;
    CHECK((std::vector<double>(of_stages, of_stages + 5) ==
           std::vector<double>{1, 1, 1, 1, 1 + helping}));
  }
}

}  // namespace

int main() {
  for (const std::int64_t num_rows : {2, 3, 8}) {
    each_tile_prefetches(Format::kF32, f32_kernel<Simd, F32Weights<Simd>>(), num_rows);
    each_tile_prefetches(Format::kInt8, group_kernel<Simd, Format::kInt8>(), num_rows);
    each_tile_prefetches(Format::kInt8Channel, channel_kernel<Simd>(), num_rows);
  }
  the_range_that_comes_next_is_prefetched();
  rows_that_come_next_are_prefetched();
  the_weights_that_come_next_are_prefetched();
  the_time_of_a_stage_is_its_own();
  for (int format = 0; format < kNumKVFormats; ++format) {
    for (const std::int64_t head_dim : {16, 32, 40, 64}) {
      for (const std::int64_t num_rows : {1, 2, 4}) {
        each_step_prefetches(static_cast<KVFormat>(format), head_dim, num_rows);
      }
    }
  }
  std::printf("ok\n");
}
