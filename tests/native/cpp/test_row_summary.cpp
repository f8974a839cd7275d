// How many tokens a summary of a row looks at: a sample of the row says where top_k and top_p end.
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

constexpr std::int64_t kVocabSize = 100'000;

// The tokens that the last truncation collects.
std::int64_t num_collected(const std::vector<float>& logits, std::int64_t top_k, double top_p) {
  ThreadPool pool(1);
  RowSummaryScratch scratch;
  RowSummary summary;
  CHECK(summarize_row(*find_kernel_table(), pool, logits.data(), kVocabSize,
                      {0, 0, 1.4f, top_k, top_p, 0.0f}, scratch, summary));
  CHECK(scratch.sample.empty() == (top_k == 0 && top_p == 1.0));
  std::int64_t sum = 0;
  for (const RowSummaryScratch::Chunk& chunk : scratch.chunks) sum += chunk.num_marked;
  return sum;
}

}  // namespace

int main() {
  std::mt19937 random(0);
  std::vector<float> logits(kVocabSize);
  for (const float deviation : {1.0f, 3.0f}) {
    std::normal_distribution<float> number(0.0f, deviation);
    for (float& logit : logits) logit = number(random);
    CHECK(num_collected(logits, 0, 1.0) == 0);
    CHECK(num_collected(logits, 50, 1.0) < 1000);
    for (const std::int64_t top_k : {1, 1000, 50'000, 99'000}) {
      CHECK(num_collected(logits, top_k, 1.0) < kVocabSize / 6);
    }
    for (const double top_p : {0.1, 0.5, 0.9, 0.99}) {
      CHECK(num_collected(logits, 0, top_p) < kVocabSize / 6);
    }
  }
  std::printf("ok\n");
}
