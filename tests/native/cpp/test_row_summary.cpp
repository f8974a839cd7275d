// The work of a summary of a row: chunks, tokens that the last truncation collects, and those of
// them that are sorted. A sample of the row says where top_k and top_p end.
// What a summary says is compared with its definition in tests/native/test_token_observation.py.
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "isa.h"
#include "row_summary.h"

namespace {

using namespace pellucid;

struct Work {
  std::int64_t num_chunks, num_collected, num_sorted;
};

Work work_of(const std::vector<float>& logits, std::int64_t top_k, double top_p) {
  static RowSummaryScratch scratch;  // with what the row before left
  ThreadPool pool(1);
  RowSummary summary;
  CHECK(summarize_row(*find_kernel_table(), pool, logits.data(),
                      static_cast<std::int64_t>(logits.size()), {0, 0, 1.4f, top_k, top_p, 0.0f},
                      scratch, summary));
  CHECK(scratch.sample.empty() == (top_k == 0 && top_p == 1.0));
  CHECK(summary.after_min_p.weight == summary.after_top_p.weight);  // min_p is off: no other sum
  Work work{static_cast<std::int64_t>(scratch.chunks.size()), 0,
            static_cast<std::int64_t>(scratch.tokens.size())};
  for (const RowSummaryScratch::Chunk& chunk : scratch.chunks) {
    work.num_collected += chunk.num_marked;
  }
  return work;
}

// About normal: the same numbers from every library.
std::vector<float> row_of(std::size_t size, float deviation) {
  std::mt19937 random(0);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random() * 0x1p-32;
    logit = deviation * static_cast<float>(sum);
  }
  return logits;
}

}  // namespace

int main() {
  struct Case {
    std::size_t size;
    float deviation;
    std::int64_t top_k;
    double top_p;
    std::int64_t num_collected, num_sorted;
  };
  for (const Case& own :
       {Case{100'000, 1.0f, 1, 1.0, 234, 1},  {100'000, 1.0f, 50, 1.0, 275, 2},
        {100'000, 1.0f, 1000, 1.0, 1087, 5},  {100'000, 1.0f, 50000, 1.0, 8813, 11},
        {100'000, 1.0f, 99000, 1.0, 1262, 1}, {100'000, 1.0f, 0, 0.1, 1715, 2},
        {100'000, 1.0f, 0, 0.5, 9227, 22},    {100'000, 1.0f, 0, 0.9, 5736, 3},
        {100'000, 1.0f, 0, 0.99, 3187, 7},    {100'000, 1.0f, 1000, 0.5, 961, 2},
        {100'000, 3.0f, 1, 1.0, 225, 1},      {100'000, 3.0f, 50, 1.0, 267, 2},
        {100'000, 3.0f, 1000, 1.0, 931, 5},   {100'000, 3.0f, 50000, 1.0, 7382, 11},
        {100'000, 3.0f, 99000, 1.0, 1110, 2}, {100'000, 3.0f, 0, 0.1, 644, 1},
        {100'000, 3.0f, 0, 0.5, 13012, 3},    {100'000, 3.0f, 0, 0.9, 1794, 1},
        {100'000, 3.0f, 0, 0.99, 2857, 2},    {100'000, 3.0f, 1000, 0.5, 3534, 2},
        {500, 1.0f, 3, 1.0, 24, 24},          {500, 1.0f, 70, 1.0, 80, 1},
        {500, 1.0f, 400, 1.0, 85, 1},         {500, 1.0f, 0, 0.3, 105, 2},
        {500, 1.0f, 0, 0.9, 88, 2},           {500, 1.0f, 400, 0.7, 90, 1},
        {9000, 1.0f, 3, 1.0, 24, 24},         {9000, 1.0f, 70, 1.0, 91, 1},
        {9000, 1.0f, 400, 1.0, 240, 1},       {9000, 1.0f, 0, 0.3, 460, 1},
        {9000, 1.0f, 0, 0.9, 481, 1},         {9000, 1.0f, 400, 0.7, 217, 1}}) {
    const Work work = work_of(row_of(own.size, own.deviation), own.top_k, own.top_p);
    CHECK(work.num_collected == own.num_collected && work.num_sorted == own.num_sorted);
  }
  for (const std::size_t size : {1, 8191, 8192, 8193, 16384}) {
    const Work work = work_of(row_of(size, 1.0f), 0, 1.0);
    CHECK(work.num_chunks == static_cast<std::int64_t>((size + 8191) / 8192));
  }
  std::printf("ok\n");
}
