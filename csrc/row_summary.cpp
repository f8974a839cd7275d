// Summarizes a row of logits. The tokens that top_k and top_p keep are a prefix of the order of
// likelihood; buckets of logits show where it ends, so that few tokens have to be sorted.
#include "row_summary.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/token_weight.h"

// The loops over a whole row, compiled for several instruction sets where the linker can choose
// among them when the library is loaded. Sums are in lanes, whose number is part of the definition:
// all of them give the same bits.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PELLUCID_FOR_EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PELLUCID_FOR_EACH_ISA
#endif

namespace pellucid {
namespace {

using Bucket = RowSummaryScratch::Bucket;

constexpr int kLanes = 8;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
using Integers = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

constexpr std::int64_t kBlockTokens = 128;
constexpr std::int64_t kChunkTokens = 8192;
constexpr int kNumBuckets = 1024;
constexpr float kBucketsPerExponent = (kNumBuckets - 1) / -token_weight::kMinExponent;
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void add(Bucket& sum, const Bucket& other) {
  sum.count += other.count;
  sum.mass += other.mass;
}

PELLUCID_FOR_EACH_ISA
void weigh(const float* __restrict logits, std::int64_t size, float peak, float sharpness,
           float* __restrict weights) {
  for (std::int64_t i = 0; i < size; ++i) {
    const float distance = (logits[i] - peak) * sharpness;
    const bool counts = distance > token_weight::kMinExponent;
    const float exponent = counts ? distance : token_weight::kMinExponent;
    float whole;
    const float power = token_weight::power_of_fraction(exponent, whole);
    const std::int32_t bits = (static_cast<std::int32_t>(whole) + 127) << 23;
    float factor;
    __builtin_memcpy(&factor, &bits, sizeof(factor));
    weights[i] = counts ? power * factor : 0.0f;
  }
}

struct Sums {
  double total = 0.0;
  double weighted = 0.0;
  double scaled = 0.0;
};

// Adds the sums of weights, of weights times distance to the peak, and of `scaled`.
PELLUCID_FOR_EACH_ISA
void add_sums(const float* __restrict logits, const float* __restrict weights,
              const float* __restrict scaled, std::int64_t size, float peak, Sums& sums) {
  Doubles totals{}, weighted{}, scaled_totals{};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Floats logit, weight, scaled_weight;
    __builtin_memcpy(&logit, logits + i, sizeof(logit));
    __builtin_memcpy(&weight, weights + i, sizeof(weight));
    __builtin_memcpy(&scaled_weight, scaled + i, sizeof(scaled_weight));
    const Doubles own = __builtin_convertvector(weight, Doubles);
    totals += own;
    weighted += own * __builtin_convertvector(logit - peak, Doubles);
    scaled_totals += __builtin_convertvector(scaled_weight, Doubles);
  }
  for (; i < size; ++i) {
    const double own = static_cast<double>(weights[i]);
    sums.total += own;
    sums.weighted += own * static_cast<double>(logits[i] - peak);
    sums.scaled += static_cast<double>(scaled[i]);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.total += totals[lane];
    sums.weighted += weighted[lane];
    sums.scaled += scaled_totals[lane];
  }
}

// How many of the values are greater than `least`; with `or_equal` also those that equal it.
PELLUCID_FOR_EACH_ISA
std::int64_t count_above(const float* values, std::int64_t size, float least, bool or_equal) {
  const float bound = or_equal ? std::nextafter(least, -kInfinity) : least;
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < size; ++i) count += values[i] > bound;
  return count;
}

// The first block of kBlockTokens values, from `begin` on, one of which is greater than `least`.
PELLUCID_FOR_EACH_ISA
std::int64_t block_above(const float* values, std::int64_t begin, std::int64_t size, float least) {
  for (; begin + kBlockTokens <= size; begin += kBlockTokens) {
    std::int32_t count = 0;
    for (std::int64_t i = 0; i < kBlockTokens; ++i) count += values[begin + i] > least;
    if (count != 0) break;
  }
  return begin;
}

PELLUCID_FOR_EACH_ISA
void find_places(const float* __restrict logits, std::int64_t size, float peak, float per_logit,
                 std::uint16_t* __restrict places) {
  for (std::int64_t i = 0; i < size; ++i) {
    const float place = (peak - logits[i]) * per_logit;
    const float bounded = place < kNumBuckets - 1 ? place : float{kNumBuckets - 1};
    places[i] = static_cast<std::uint16_t>(static_cast<std::int32_t>(bounded));
  }
}

// The tokens with logits above `least` and weights of at least `least_weight`.
PELLUCID_FOR_EACH_ISA
KeptTokens kept_above(const float* __restrict logits, const float* __restrict weights,
                      std::int64_t size, float least, float least_weight) {
  Integers counts{};
  Doubles sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Floats logit, weight;
    __builtin_memcpy(&logit, logits + i, sizeof(logit));
    __builtin_memcpy(&weight, weights + i, sizeof(weight));
    const Integers are_kept = (logit > least) & (weight >= least_weight);  // -1 where true
    counts -= are_kept;
    sums += __builtin_convertvector(are_kept ? weight : Floats{}, Doubles);
  }
  KeptTokens kept;
  for (int lane = 0; lane < kLanes; ++lane) {
    kept.count += counts[lane];
    kept.weight += sums[lane];
  }
  for (; i < size; ++i) {
    if (!(logits[i] > least && weights[i] >= least_weight)) continue;
    ++kept.count;
    kept.weight += static_cast<double>(weights[i]);
  }
  return kept;
}

class Row {
 public:
  Row(const float* logits, std::int64_t vocab_size, float peak, const RowQuestion& question,
      RowSummaryScratch& scratch)
      : logits_(logits),
        vocab_size_(vocab_size),
        peak_(peak),
        question_(question),
        scratch_(scratch) {}

  bool summarize(RowSummary& summary) {
    summary.peak = peak_;
    const Sums sums = weigh_all();
    if (!std::isfinite(sums.weighted)) return false;  // a logit is -infinity or NaN
    summary.total = sums.total;
    summary.weighted = sums.weighted;
    summary.all = {vocab_size_, sums.scaled};
    const std::int64_t token = question_.token;
    summary.rank = 1 + count_above(logits_, token, logits_[token], true) +
                   count_above(logits_ + token, vocab_size_ - token, logits_[token], false);
    find_likeliest(summary.likeliest);
    truncate(summary);
    summary.is_kept = is_kept(token);
    for (const std::int64_t each : summary.likeliest) summary.are_kept.push_back(is_kept(each));
    return true;
  }

 private:
  // By logit; of equals the lower token first.
  bool is_likelier(std::int64_t a, std::int64_t b) const {
    return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
  }

  bool is_kept(std::int64_t token) const {
    return !(last_ >= 0 && is_likelier(last_, token)) && scaled_[token] >= question_.min_p;
  }

  // In chunks that stay in the caches. Those at temperature 1 are not needed afterwards.
  Sums weigh_all() {
    scratch_.weights.resize(kChunkTokens);
    scratch_.scaled.resize(static_cast<std::size_t>(vocab_size_));
    scaled_ = scratch_.scaled.data();
    Sums sums;
    for (std::int64_t begin = 0; begin < vocab_size_; begin += kChunkTokens) {
      const std::int64_t size = std::min(vocab_size_ - begin, kChunkTokens);
      const float* const logits = logits_ + begin;
      float* const scaled = scratch_.scaled.data() + begin;
      weigh(logits, size, peak_, question_.sharpness, scaled);
      const float* own = scaled;
      if (question_.sharpness != kLog2E) {
        weigh(logits, size, peak_, kLog2E, scratch_.weights.data());
        own = scratch_.weights.data();
      }
      add_sums(logits, own, scaled, size, peak_, sums);
    }
    return sums;
  }

  void find_likeliest(std::vector<std::int64_t>& likeliest) const {
    const auto count = static_cast<std::size_t>(question_.num_likeliest);
    if (count == 0) return;
    float least = -kInfinity;  // of `count` tokens
    const auto offer = [&](std::int64_t token) {
      if (!(logits_[token] > least)) return;
      if (likeliest.size() == count) likeliest.pop_back();
      const auto place =
          std::upper_bound(likeliest.begin(), likeliest.end(), token,
                           [&](std::int64_t a, std::int64_t b) { return is_likelier(a, b); });
      likeliest.insert(place, token);
      if (likeliest.size() == count) least = logits_[likeliest.back()];
    };
    std::int64_t token = 0;
    while (token < vocab_size_) {
      token = block_above(logits_, token, vocab_size_, least);
      const std::int64_t end = std::min(token + kBlockTokens, vocab_size_);
      for (; token < end; ++token) offer(token);
    }
  }

  void truncate(RowSummary& summary) {
    Bucket left{vocab_size_, 0};
    if (question_.top_k > 0 || question_.top_p < 1.0) {
      fill_buckets();
      for (const Bucket& bucket : scratch_.buckets) left.mass += bucket.mass;
    }
    summary.after_top_k = summary.all;
    if (question_.top_k > 0 && question_.top_k < vocab_size_) {
      left = cut([&](const Bucket& sum) { return sum.count >= question_.top_k; });
      summary.after_top_k = kept_tokens();
    }
    summary.after_top_p = summary.after_top_k;
    if (question_.top_p < 1.0) {
      const auto target =
          static_cast<std::int64_t>(std::ceil(question_.top_p * static_cast<double>(left.mass)));
      const std::int64_t most = left.count;
      left = cut([&](const Bucket& sum) { return sum.mass >= target || sum.count >= most; });
      summary.after_top_p = kept_tokens();
    }
    summary.after_min_p = summary.after_top_p;
    if (question_.min_p > 0.0f) {
      least_weight_ = question_.min_p;
      summary.after_min_p = kept_tokens();
    }
  }

  // Sorts tokens into buckets of equal width by how far their logit is below the peak.
  void fill_buckets() {
    scratch_.buckets.assign(kNumBuckets, Bucket{});
    scratch_.places.resize(static_cast<std::size_t>(vocab_size_));
    std::uint16_t* const places = scratch_.places.data();
    find_places(logits_, vocab_size_, peak_, question_.sharpness * kBucketsPerExponent, places);
    Bucket* const buckets = scratch_.buckets.data();
    for (std::int64_t token = 0; token < vocab_size_; ++token) {
      add(buckets[places[token]], alone(token));
    }
  }

  Bucket alone(std::int64_t token) const { return {1, token_weight::mass_of(scaled_[token])}; }

  // Keeps tokens in order of likelihood until their sum is `enough`, or all. Sets the last one.
  template <class Enough>
  Bucket cut(Enough enough) {
    Bucket sum{};
    for (std::size_t place = 0; place < kNumBuckets; ++place) {
      const Bucket before = sum;
      add(sum, scratch_.buckets[place]);
      if (enough(sum)) return cut_bucket(place, before, enough);
    }
    last_ = -1;
    return sum;
  }

  // Quickselect in the bucket where the sum becomes enough.
  template <class Enough>
  Bucket cut_bucket(std::size_t place, Bucket sum, Enough enough) {
    std::vector<std::int32_t>& tokens = scratch_.tokens;
    tokens.resize(static_cast<std::size_t>(vocab_size_));
    std::size_t count = 0;
    for (std::int64_t token = 0; token < vocab_size_; ++token) {  // without branches
      tokens[count] = static_cast<std::int32_t>(token);
      count += scratch_.places[static_cast<std::size_t>(token)] == place;
    }
    auto begin = tokens.begin(), end = begin + static_cast<std::ptrdiff_t>(count);
    while (end - begin > 1) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end,
                       [&](std::int32_t a, std::int32_t b) { return is_likelier(a, b); });
      Bucket half = sum;
      for (auto token = begin; token != middle; ++token) add(half, alone(*token));
      if (enough(half)) {
        end = middle;
      } else {
        sum = half;
        begin = middle;
      }
    }
    last_ = *begin;
    add(sum, alone(last_));
    return sum;
  }

  KeptTokens kept_tokens() const {
    if (last_ < 0) return kept_above(logits_, scaled_, vocab_size_, -kInfinity, least_weight_);
    // Tokens that equal the last one are kept before it, and not behind it.
    const std::int64_t split = last_ + 1;
    const float least = logits_[last_];
    const KeptTokens before =
        kept_above(logits_, scaled_, split, std::nextafter(least, -kInfinity), least_weight_);
    const KeptTokens behind =
        kept_above(logits_ + split, scaled_ + split, vocab_size_ - split, least, least_weight_);
    return {before.count + behind.count, before.weight + behind.weight};
  }

  const float* const logits_;
  const std::int64_t vocab_size_;
  const float peak_;
  const RowQuestion& question_;
  RowSummaryScratch& scratch_;
  const float* scaled_ = nullptr;  // [V] weights at the temperature
  float least_weight_ = 0.0f;      // that min_p keeps
  std::int64_t last_ = -1;  // the least likely token that top_k and top_p keep; -1: they keep all
};

}  // namespace

bool summarize_row(const KernelTable& kernels, const float* logits, std::int64_t vocab_size,
                   const RowQuestion& question, RowSummaryScratch& scratch, RowSummary& summary) {
  assert(0 <= question.token && question.token < vocab_size);
  assert(0 <= question.num_likeliest && question.num_likeliest <= vocab_size);
  const float peak = kernels.elementwise.largest(logits, vocab_size);
  if (!std::isfinite(peak)) return false;
  return Row(logits, vocab_size, peak, question, scratch).summarize(summary);
}

}  // namespace pellucid
