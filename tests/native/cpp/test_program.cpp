// Program: the memory plan, phases on several threads, runs on the caller's thread alone. Under
// ThreadSanitizer it shows that no barrier is missing.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "isa.h"
#include "program.h"
#include "program_attention.h"
#include "program_experts.h"
#include "program_ops.h"
#include "program_states.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kHeads = 4, kKVHeads = 2, kHeadDim = 16;
constexpr std::int64_t kHidden = kHeads * kHeadDim;
constexpr std::int64_t kQkv = (kHeads + 2 * kKVHeads) * kHeadDim;
constexpr std::int64_t kInner = 96, kVocab = 70, kLayers = 3;
constexpr std::int64_t kExperts = 5, kChosen = 3, kExpertInner = 40;
constexpr std::int64_t kMaxRows = 160;
constexpr std::int32_t kBlockSize = 16, kBlocks = 5;  // of a request

// What a decoder computes with.
struct Arithmetic {
  const KernelTable* kernels;
  Format weights;  // kF32 or kInt8
  KVFormat cache;
};

Weights random_weights(std::mt19937& random, Format format, std::int64_t num_outputs,
                       std::int64_t num_inputs) {
  std::normal_distribution<float> normal(0.0f, 1.0f / 8);
  const auto size = static_cast<std::size_t>(num_outputs * num_inputs);
  std::vector<float> numbers(size);
  for (float& x : numbers) x = normal(random);
  auto weights = std::make_shared<LinearWeights>(
      LinearWeights{PackedMatrix(format, num_outputs, num_inputs), {}});
  if (format == Format::kF32) {
    weights->matrix.pack({numbers.data()}, 0, weights->matrix.num_panels());
    return weights;
  }
  constexpr std::uint16_t kHundredth = 0x211f;  // in f16
  std::vector<std::int8_t> codes;
  for (const float x : numbers) codes.push_back(static_cast<std::int8_t>(100 * x));
  const std::vector<std::uint16_t> scales(size, kHundredth);  // more than there are groups
  weights->matrix.pack({codes.data(), scales.data()}, 0, weights->matrix.num_panels());
  return weights;
}

// A small decoder, as tracing would put it together.
std::unique_ptr<Program> make_program(const Arithmetic& arithmetic,
                                      std::shared_ptr<ThreadPool> pool) {
  std::mt19937 random(0);
  const auto weights = [&](std::int64_t num_outputs, std::int64_t num_inputs) {
    return random_weights(random, arithmetic.weights, num_outputs, num_inputs);
  };
  auto program = std::make_unique<Program>(*arithmetic.kernels, std::move(pool), kMaxRows,
                                           /*small_step_bytes=*/0);
  const auto ones = std::make_shared<const std::vector<float>>(kHidden, 1.0f);
  ProgramAttention attention(
      *program, {kMaxRows, kMaxRows, 256, kHeads, kKVHeads, kHeadDim, program->max_threads()});
  ProgramExperts mixtures(*program, kExperts, kChosen);
  const Weights table = weights(kVocab, kHidden);
  const View x{program->add_buffer(RowSet::kTokens, kHidden)};
  const View rotations{program->add_buffer(RowSet::kTokens, kHeadDim)};
  add_embed(*program, Indices::kTokenIds, table, 2.0f, x);
  add_rotations(*program, 0, kHeadDim, 1.0f, {}, rotations);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const View normed{program->add_buffer(RowSet::kTokens, kHidden)};
    const View qkv{program->add_buffer(RowSet::kTokens, kQkv)};
    const View k{qkv.buffer, kHidden};
    const View v{qkv.buffer, kHidden + kKVHeads * kHeadDim};
    const View heads{program->add_buffer(RowSet::kTokens, kHidden)};
    add_rms_norm(*program, RowSet::kTokens, x, ones, 1e-5f, 1, normed);
    add_linear(*program, RowSet::kTokens, normed, weights(kQkv, kHidden), qkv, false);
    add_rope(*program, RowSet::kTokens, qkv, rotations, kHeads, kHeadDim, kHeadDim, qkv);
    add_rope(*program, RowSet::kTokens, k, rotations, kKVHeads, kHeadDim, kHeadDim, k);
    add_store_kv(*program, {layer}, k, v, kKVHeads, kHeadDim);
    attention.add_attention(RowSet::kTokens, {layer}, qkv, {0.25f, 0.0f, 0}, heads);
    add_linear(*program, RowSet::kTokens, heads, weights(kHidden, kHidden), x, true);
    const View gate_up{program->add_buffer(RowSet::kTokens, 2 * kInner)};
    add_linear(*program, RowSet::kTokens, x, weights(2 * kInner, kHidden), gate_up, false);
    add_gated_activate(*program, RowSet::kTokens, gate_up, ActivationFunction::kSilu, kInner,
                       gate_up);
    add_linear(*program, RowSet::kTokens, gate_up, weights(kHidden, kInner), x, true);
    // A prompt's rows are enough for each thread to take experts of its own.
    const View scores{program->add_buffer(RowSet::kTokens, kExperts)};
    const View chosen{program->add_buffer(RowSet::kTokens, kExperts)};
    ExpertWeights experts;
    for (std::int64_t expert = 0; expert < kExperts; ++expert) {
      experts.gate.push_back(weights(kExpertInner, kHidden));
      experts.up.push_back(weights(kExpertInner, kHidden));
      experts.down.push_back(weights(kHidden, kExpertInner));
    }
    add_linear(*program, RowSet::kTokens, x, weights(kExperts, kHidden), scores, false);
    add_route(*program, RowSet::kTokens, scores, nullptr,
              {RouterScores::kSoftmax, kExperts, kChosen, true, 1.0f}, chosen);
    mixtures.add_expert_mlp(RowSet::kTokens, x, chosen, experts, ActivationFunction::kSilu, x,
                            true);
  }
  const View last{program->add_buffer(RowSet::kLogits, kHidden)};
  const View logits{program->add_buffer(RowSet::kLogits, kVocab)};
  add_gather(*program, x, kHidden, last);
  add_linear(*program, RowSet::kLogits, last, table, logits, false);
  program->set_output(logits.buffer);
  program->finish();
  return program;
}

// Two requests, each a prompt of `num_tokens`, then one token each: the logits of all rows.
std::vector<float> logits_of(Program& program, KVFormat cache_format, std::int32_t num_tokens) {
  KVCache cache({cache_format, kBlockSize, {{kLayers, kKVHeads, kHeadDim}}}, 2 * kBlocks);
  std::vector<float> frequencies(kHeadDim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1.0f / static_cast<float>(1 << i);
  const std::vector<std::int32_t> block_tables = {5, 0, 3, 1, 9, 2, 8, 4, 7, 6};
  std::vector<float> all;
  for (const bool is_prompt : {true, false}) {
    const std::int32_t begin = is_prompt ? 0 : num_tokens;
    const std::int32_t end = is_prompt ? num_tokens : num_tokens + 1;
    std::vector<std::int32_t> token_ids, positions, rows;
    std::vector<std::int64_t> slots;
    for (const std::int32_t request : {0, 1}) {
      for (std::int32_t position = begin; position < end; ++position) {
        token_ids.push_back((7 * position + request) % kVocab);
        positions.push_back(position);
        rows.push_back(static_cast<std::int32_t>(rows.size()));
        const auto block = static_cast<std::size_t>(kBlocks * request + position / kBlockSize);
        slots.push_back(std::int64_t{block_tables[block]} * kBlockSize + position % kBlockSize);
      }
    }
    const std::int32_t q_len = end - begin;
    const std::vector<std::int32_t> query_start = {0, q_len, 2 * q_len}, seq_lens = {end, end};
    std::vector<float> logits(rows.size() * kVocab);
    Step step;
    step.num_tokens = step.num_logits = static_cast<std::int64_t>(rows.size());
    step.num_requests = 2;
    step.max_blocks = kBlocks;
    step.token_ids = token_ids.data();
    step.positions = positions.data();
    step.slot_mapping = slots.data();
    step.query_start = query_start.data();
    step.seq_lens = seq_lens.data();
    step.block_tables = block_tables.data();
    step.logits_indices = rows.data();
    step.frequencies = {{frequencies.data(), 1, kHeadDim / 2}};
    step.kv_cache = &cache;
    step.output = logits.data();
    std::vector<double> seconds(program.stage_names().size(), -1.0);
    step.stage_seconds = seconds.data();
    program.run(step);
    for (const double s : seconds) CHECK(s >= 0.0);
    CHECK(std::accumulate(seconds.begin(), seconds.end(), 0.0) > 0.0);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

void threads_change_no_bit(const Arithmetic& arithmetic) {
  const auto alone = make_program(arithmetic, std::make_shared<ThreadPool>(1));
  const auto check = [&](Program& program, std::int32_t num_tokens) {
    CHECK(logits_of(program, arithmetic.cache, num_tokens) ==
          logits_of(*alone, arithmetic.cache, num_tokens));
  };
  for (const int num_threads : {2, 3}) {
    const auto pool = std::make_shared<ThreadPool>(num_threads);
    const auto program = make_program(arithmetic, pool);
    for (const std::int32_t num_tokens : {1, 7, 19, 40, 75}) {  // the last ones go by row
      check(*program, num_tokens);
    }
    for (const int fewer_threads : {1, 2}) {
      pool->resize(fewer_threads);
      for (const std::int32_t num_tokens : {1, 75, 79}) check(*program, num_tokens);
    }
  }
}

// Plans of a server's memory count on these figures.
void memory_is_counted() {
  const KernelTable* const kernels = find_kernel_table("portable");
  const auto bytes = [&](Format weights, int num_threads) {
    const auto pool = std::make_shared<ThreadPool>(num_threads);
    return make_program({kernels, weights, KVFormat::kF32}, pool)->scratch_bytes();
  };
  CHECK(bytes(Format::kF32, 1) == 749544 && bytes(Format::kF32, 2) == 751128);
  CHECK(bytes(Format::kInt8, 1) == 442344 && bytes(Format::kInt8, 2) == 443928);
  const auto recurrent_bytes = [&](int num_threads) {
    Program program(*kernels, std::make_shared<ThreadPool>(num_threads), 4, 0);
    const View qkv{program.add_buffer(RowSet::kTokens, 128)};
    const View x{program.add_buffer(RowSet::kTokens, 128)};
    const View gates{program.add_buffer(RowSet::kTokens, 4)};
    const auto ones = [](std::size_t size) {
      return std::make_shared<const std::vector<float>>(size, 1.0f);
    };
    add_causal_convolution(program, x, ones(256), nullptr, 128, 0, qkv);
    add_gated_delta_net(program, qkv, gates, gates, ones(4), ones(4), {2, 4, 16, 16, false}, 256,
                        x);
    program.finish();
    return program.scratch_bytes();
  };
  CHECK(recurrent_bytes(3) - recurrent_bytes(1) ==
        2 * 16 * 32 * sizeof(float));  // a head's columns
  Program empty(*kernels, std::make_shared<ThreadPool>(1), 4, 0);
  empty.finish();
  CHECK(empty.scratch_bytes() == 0);
}

std::int64_t num_activated;  // rows

// Each expert's rows are activated once, where threads share matrices and where they do not.
void work_of_experts_is_counted() {
  KernelTable kernels = *find_kernel_table("portable");
  kernels.elementwise.gated_activate[static_cast<int>(ActivationFunction::kSilu)] =
      [](const float* x, std::int64_t size, float* y) {
        ++num_activated;
        std::copy_n(x, size, y);
      };
  const auto program =
      make_program({&kernels, Format::kF32, KVFormat::kF32}, std::make_shared<ThreadPool>(1));
  for (const std::int32_t num_tokens : {7, 75}) {
    num_activated = 0;
    logits_of(*program, KVFormat::kF32, num_tokens);
    const std::int64_t num_rows = 2 * (num_tokens + 1);
    CHECK(num_activated == kLayers * num_rows * (1 + kChosen));
  }
}

// Buffers that are in use at the same time never share memory: each holds its number until the end
// of its life.
void buffers_keep_their_numbers() {
  Program program(*find_kernel_table("portable"), std::make_shared<ThreadPool>(2), 3, 0);
  std::mt19937 random(1);
  constexpr int kBuffers = 40;
  std::vector<View> views;
  for (int i = 0; i < kBuffers; ++i) {
    views.push_back({program.add_buffer(RowSet::kTokens, 1 + static_cast<int>(random() % 200))});
  }
  const auto number = [](int buffer, std::int64_t row) {
    return static_cast<float>(100 * buffer + static_cast<int>(row));
  };
  std::int64_t bytes_of_all = 0;
  for (int i = 0; i < kBuffers; ++i) {
    program.add_phase(
        "write", {views[static_cast<std::size_t>(i)].buffer}, [](const Step&) { return 3; },
        [](const Step&) { return 1; },
        [&program, &views, number, i](const Step&, const Share& share) {
          for (std::int64_t r = share.begin; r < share.end; ++r) {
            *program.row(views[static_cast<std::size_t>(i)], r) = number(i, r);
          }
        });
    bytes_of_all += 3 * program.stride(views[static_cast<std::size_t>(i)]) * 4;
    const int older = std::max(0, i - static_cast<int>(random() % 4));
    program.add_row_phase(
        "check", RowSet::kTokens, {views[static_cast<std::size_t>(older)].buffer},
        [&program, &views, number, older](const Step&, std::int64_t r) {
          CHECK(*program.row(views[static_cast<std::size_t>(older)], r) == number(older, r));
        });
  }
  program.finish();
  CHECK(static_cast<std::int64_t>(program.scratch_bytes()) < bytes_of_all / 3);
  Step step;
  step.num_tokens = 3;
  program.run(step);
}

// The bytes of weights, counted once and again for every eight rows, decide who runs a step.
void small_steps_run_on_one_thread() {
  Program program(*find_kernel_table("portable"), std::make_shared<ThreadPool>(2), 16,
                  /*small_step_bytes=*/200);
  program.add_weight_bytes(100);
  std::atomic<int> num_threads{0};
  const auto one = [](const Step&) { return std::int64_t{1}; };
  for (int phase = 0; phase < 2; ++phase) {  // in each, threads ask for the weights of the next
    program.add_phase(
        "phase", {}, one, one, [](const Step&, const Share&) {},
        [&](const Step&, const Worker& worker) {
          num_threads = worker.num_threads();
          return WeightSpan{};
        });
  }
  program.finish();
  for (const std::int64_t num_tokens : {1, 7, 8, 16}) {
    Step step;
    step.num_tokens = num_tokens;
    program.run(step);
    CHECK(num_threads == (num_tokens < 8 ? 1 : 2));
  }
}

// Each block of rows reads all weights: the stage that wants the most rows decides.
void weights_are_read_once_per_block() {
  constexpr std::int64_t kColumns = 10, kManyRows = 4 * kRowsPerBlock;
  Program program(*find_kernel_table("portable"), std::make_shared<ThreadPool>(1), kManyRows, 0);
  std::vector<std::int64_t> num_calls(3), num_cells(3);
  for (const std::size_t stage : {0, 1, 2}) {
    program.add_column_phase(
        "stage", RowSet::kTokens, {}, {nullptr, 0, kColumns},
        {/*of_few_rows=*/5, /*of_row_block=*/3, (stage == 1 ? 2 : 1) * kRowsPerBlock},
        [&, stage](const Step&, Range rows, Range columns) {
          ++num_calls[stage];
          num_cells[stage] += (rows.end - rows.begin) * (columns.end - columns.begin);
        });
  }
  program.finish();
  const auto check = [&](std::int64_t num_tokens, std::int64_t calls) {
    num_calls.assign(3, 0);
    num_cells.assign(3, 0);
    Step step;
    step.num_tokens = num_tokens;
    program.run(step);
    CHECK(num_calls == std::vector<std::int64_t>(3, calls));
    CHECK(num_cells == std::vector<std::int64_t>(3, num_tokens * kColumns));
  };
  check(0, 0);
  check(7, 2);              // few rows: two pieces of five columns
  check(8, 4);              // one block, in four pieces
  check(kManyRows, 2 * 4);  // two blocks
}

// Its own thread holds the lock of the program.
void a_process_forked_within_a_step_is_told() {
  Program program(*find_kernel_table("portable"), std::make_shared<ThreadPool>(1), 4, 0);
  const View x{program.add_buffer(RowSet::kTokens, 1)};
  int status = -1;
  program.add_row_phase("fork", RowSet::kTokens, {x.buffer}, [&](const Step& step, std::int64_t) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends a child that waits for ever
      try {
        program.run(step);
      } catch (const std::runtime_error&) {
        _exit(0);
      }
      _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
  });
  program.finish();
  Step step;
  step.num_tokens = 1;
  program.run(step);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A step that nobody filled in has no rows.
void an_empty_step_runs_nothing() {
  Program program(*find_kernel_table("portable"), std::make_shared<ThreadPool>(1), 4, 0);
  const View x{program.add_buffer(RowSet::kTokens, 1)};
  const View last{program.add_buffer(RowSet::kLogits, 1)};
  std::int64_t num_rows = 0;
  for (const auto& [rows, view] :
       {std::pair(RowSet::kTokens, x), std::pair(RowSet::kLogits, last)}) {
    program.add_row_phase("count", rows, {view.buffer},
                          [&](const Step&, std::int64_t) { ++num_rows; });
  }
  ProgramAttention attention(program, {4, 4, 256, 1, 1, 8, 1});
  const View q{program.add_buffer(RowSet::kTokens, 8)};
  add_store_kv(program, {0}, q, q, 1, 8);
  attention.add_attention(RowSet::kTokens, {0}, q, {1.0f, 0.0f, 0}, q);
  program.finish();
  KVCache cache({KVFormat::kF32, kBlockSize, {{1, 1, 8}}}, 1);
  Step step;
  step.kv_cache = &cache;
  program.run(step);
  CHECK(num_rows == 0);
}

}  // namespace

int main() {
  threads_change_no_bit({find_kernel_table("portable"), Format::kF32, KVFormat::kF32});
  for (const KernelTable* kernels : supported_kernel_tables()) {
    threads_change_no_bit({kernels, Format::kInt8, KVFormat::kInt8});
  }
  memory_is_counted();
  work_of_experts_is_counted();
  buffers_keep_their_numbers();
  small_steps_run_on_one_thread();
  weights_are_read_once_per_block();
  a_process_forked_within_a_step_is_told();
  an_empty_step_runs_nothing();
  std::printf("ok\n");
}
