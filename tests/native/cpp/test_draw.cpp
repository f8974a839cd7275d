// Draws on every level are those of portable code, of vocabularies of any size; logits stay as they
// are. The work of a draw, which no token shows, is counted. What is drawn is compared with the
// definition in tests/native/test_draws.py.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "draw.h"
#include "isa.h"

namespace {

std::int64_t num_looked, num_noises, num_massed, num_peaked;  // tokens; logarithms of noise

}  // namespace

#define __builtin_frexp(number, exponent) (++num_noises, std::frexp(number, exponent))
#include "kernels/token_noise.h"

namespace pellucid {
namespace {
namespace noise {

bool counted_may_arrive(std::uint32_t upper_bits, float weight, float latest) {
  ++num_looked;
  return may_arrive(upper_bits, weight, latest);
}

}  // namespace noise
}  // namespace
}  // namespace pellucid

#define may_arrive counted_may_arrive
#include "draw.cpp"
#include "kernels/sampling_table.h"

namespace {

using pellucid::Draw;
using pellucid::KernelTable;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  std::vector<float> logits;
  std::vector<std::uint32_t> allowed;
  std::vector<std::int32_t> text;
  Draw draw;
};

std::int64_t largest_of(const std::vector<float>& logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::int64_t>(best);
}

Case random_case(std::size_t vocab_size, std::uint32_t seed) {
  std::mt19937 engine(seed);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  Case own;
  std::normal_distribution<float> number(0.0f, seed % 2 == 0 ? 0.1f : 6.0f);
  own.logits.resize(vocab_size);
  for (float& x : own.logits) x = number(engine);
  if (seed % 5 == 0 && vocab_size > 1) own.logits[vocab_size / 2] = -kInfinity;
  own.draw.key = {random(), random(), seed % 3, seed};
  own.draw.sharpness = seed % 7 == 0 ? 0.0f : 1.4f;
  own.draw.top_k = seed % 4 == 1 ? 5 : 0;
  own.draw.top_p = seed % 3 == 0 ? 1.0 : 0.3;
  own.draw.typical_p = seed % 6 == 2 ? 0.5 : 1.0;
  if (seed % 4 >= 2) {
    own.allowed.resize(vocab_size / 32 + 1);
    for (std::uint32_t& word : own.allowed) word = random() | 1;
    own.draw.allowed = own.allowed.data();
  }
  if (seed % 3 == 1) {
    for (int i = 0; i < 50; ++i) {
      own.text.push_back(static_cast<std::int32_t>(random() % vocab_size));
    }
    own.draw.text = own.text.data();
    own.draw.num_text_tokens = 50;
    own.draw.num_prompt_tokens = 20;
    own.draw.repetition_penalty = 1.3;
    own.draw.frequency_penalty = 0.4;
  }
  return own;
}

std::int64_t draw(const KernelTable& kernels, Case& own, pellucid::DrawScratch& scratch) {
  const std::vector<float> before = own.logits;
  const std::int64_t token =
      draw_token(kernels, own.logits.data(), static_cast<std::int64_t>(own.logits.size()),
                 largest_of(own.logits), own.draw, scratch);
  CHECK(own.logits == before);
  return token;
}

// Few tokens are looked at, of fewer the noise is computed in full, and few candidates are
// collected.
void work_is_counted() {
  KernelTable kernels{};
  kernels.sampling = pellucid::sampling::kernels();
  kernels.sampling.mass = [](const pellucid::Columns& columns) {
    num_massed += columns.end - columns.begin;
    return pellucid::sampling::mass(columns);
  };
  kernels.sampling.peak = [](const pellucid::Columns& columns) {
    num_peaked += columns.end - columns.begin;
    return pellucid::sampling::peak(columns);
  };
  std::vector<float> logits(50'000);
  std::mt19937 random(0);
  for (float& logit : logits) {
    for (int i = 0; i < 12; ++i) logit += 4.0f * static_cast<float>(random() >> 8) * 0x1p-24f;
  }
  struct Work {
    std::int64_t top_k;
    double top_p;
    float min_p;
    double typical_p;
    std::int64_t num_looked, num_noises, num_massed, num_peaked;
    std::size_t most_candidates;
  };
  for (const Work& own : {Work{0, 1.0, 0.0f, 1.0, 1'280, 10, 0, 0, 0},
                          {0, 0.1, 0.0f, 1.0, 1'293, 19, 214'688, 0, 0},
                          {0, 0.9, 0.0f, 1.0, 1'280, 10, 49'152, 0, 0},
                          {0, 1.0, 0.1f, 1.0, 2, 2, 0, 0, 0},
                          {40, 1.0, 0.0f, 1.0, 40, 6, 0, 49'920, 64},
                          {195, 1.0, 0.0f, 1.0, 195, 9, 0, 49'920, 512},
                          {196, 0.9, 0.0f, 1.0, 118, 3, 0, 0, 65'536},
                          {0, 1.0, 0.0f, 0.5, 209, 6, 0, 0, 65'536}}) {
    pellucid::DrawScratch scratch;
    const Draw draw{{1, 2, 3, 4}, 1.4f, own.top_k, own.top_p, own.min_p, own.typical_p};
    num_looked = num_noises = num_massed = num_peaked = 0;
    draw_token(kernels, logits.data(), 50'000, largest_of(logits), draw, scratch);
    CHECK(num_looked == own.num_looked && num_noises == own.num_noises);
    CHECK(num_massed == own.num_massed && num_peaked == own.num_peaked);
    CHECK(scratch.candidates.capacity() <= own.most_candidates);
  }
}

}  // namespace

int main() {
  work_is_counted();
  const KernelTable& portable = *pellucid::find_kernel_table("portable");
  for (const std::size_t vocab_size : {1, 31, 128, 129, 1000}) {
    pellucid::DrawScratch scratch;
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
      Case own = random_case(vocab_size, seed);
      const std::int64_t wanted = draw(portable, own, scratch);
      CHECK(wanted >= 0 && wanted < static_cast<std::int64_t>(vocab_size));
      for (const KernelTable* kernels : pellucid::supported_kernel_tables()) {
        CHECK(draw(*kernels, own, scratch) == wanted);
      }
    }
  }
  std::puts("ok");
}
