// Summarizes a row of logits. The tokens that top_k and top_p keep are a prefix of the order of
// likelihood. A sample of the row shows about where it ends, so that few tokens have to be ordered.
#include "row_summary.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/token_weight.h"
#include "rounding.h"

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

using Prefix = RowSummaryScratch::Prefix;

constexpr int kLanes = 8;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
using Integers = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
using LongIntegers = std::int64_t __attribute__((vector_size(kLanes * sizeof(std::int64_t))));

constexpr std::int64_t kBlockTokens = 128;
constexpr std::int64_t kChunkTokens = 8192;
constexpr std::int64_t kSampledTokens = 8192;
constexpr int kNumBuckets = 1024;
constexpr double kSampleError = 0.01;  // of a share of the row, mostly
constexpr std::size_t kSortedTokens = 64;
constexpr float kBucketsPerExponent = kNumBuckets / -token_weight::kMinExponent;
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline __attribute__((always_inline)) Floats load(const float* values) {
  Floats loaded;
  __builtin_memcpy(&loaded, values, sizeof(loaded));
  return loaded;
}

inline __attribute__((always_inline)) LongIntegers masses_of(Floats weights) {
  const Floats units = weights * token_weight::kUnitsPerWeight + 0.5f;
  return __builtin_convertvector(__builtin_convertvector(units, Integers), LongIntegers);
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
  std::int64_t mass = 0;
};

// Adds the sums of weights, of weights times distance to the peak, and of `scaled` and its masses.
PELLUCID_FOR_EACH_ISA
void add_sums(const float* __restrict logits, const float* __restrict weights,
              const float* __restrict scaled, std::int64_t size, float peak, Sums& sums) {
  Doubles totals{}, weighted{}, scaled_totals{};
  LongIntegers masses{};
  std::int64_t i = 0;
  for (; i + kBlockTokens <= size; i += kBlockTokens) {
    // Few floats are added before their sum becomes a double.
    Floats part{}, weighted_part{}, scaled_part{};
    for (std::int64_t j = i; j < i + kBlockTokens; j += kLanes) {
      const Floats weight = load(weights + j);
      part += weight;
      weighted_part += weight * (load(logits + j) - peak);
      const Floats scaled_weight = load(scaled + j);
      scaled_part += scaled_weight;
      masses += masses_of(scaled_weight);
    }
    totals += __builtin_convertvector(part, Doubles);
    weighted += __builtin_convertvector(weighted_part, Doubles);
    scaled_totals += __builtin_convertvector(scaled_part, Doubles);
  }
  for (; i < size; ++i) {
    const double own = static_cast<double>(weights[i]);
    sums.total += own;
    sums.weighted += own * static_cast<double>(logits[i] - peak);
    sums.scaled += static_cast<double>(scaled[i]);
    sums.mass += token_weight::mass_of(scaled[i]);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.total += totals[lane];
    sums.weighted += weighted[lane];
    sums.scaled += scaled_totals[lane];
    sums.mass += masses[lane];
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

// Adds the tokens with logits above `least` and weights of at least `least_weight`.
PELLUCID_FOR_EACH_ISA
void add_above(const float* __restrict logits, const float* __restrict weights, std::int64_t size,
               float least, float least_weight, Prefix& sum) {
  Integers counts{};
  LongIntegers masses{};
  Doubles sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats weight = load(weights + i);
    const Integers are_above = (load(logits + i) > least) & (weight >= least_weight);  // -1: true
    counts -= are_above;
    const Floats own = are_above ? weight : Floats{};
    masses += masses_of(own);
    sums += __builtin_convertvector(own, Doubles);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    sum.count += counts[lane];
    sum.mass += masses[lane];
    sum.weight += sums[lane];
  }
  for (; i < size; ++i) {
    if (!(logits[i] > least && weights[i] >= least_weight)) continue;
    ++sum.count;
    sum.mass += token_weight::mass_of(weights[i]);
    sum.weight += static_cast<double>(weights[i]);
  }
}

// Marks logits above `least` and not above `most`.
PELLUCID_FOR_EACH_ISA
void mark_between(const float* __restrict logits, std::int64_t size, float least, float most,
                  std::uint8_t* __restrict marks) {
  for (std::int64_t i = 0; i < size; ++i) {
    marks[i] = static_cast<std::uint8_t>((logits[i] > least) & !(logits[i] > most));
  }
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
    all_weight_ = sums.scaled;
    const std::int64_t token = question_.token;
    summary.rank = 1 + count_above(logits_, token, logits_[token], true) +
                   count_above(logits_ + token, vocab_size_ - token, logits_[token], false);
    find_likeliest(summary.likeliest);
    truncate(summary, sums.mass);
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

  void truncate(RowSummary& summary, std::int64_t mass) {
    Prefix left{vocab_size_, mass, summary.all.weight};
    if (question_.top_k > 0 && question_.top_k < vocab_size_) {
      const double share = static_cast<double>(question_.top_k) / static_cast<double>(vocab_size_);
      left = cut(
          share, [](const Prefix& sum) { return static_cast<double>(sum.count); },
          [&](const Prefix& sum) { return sum.count >= question_.top_k; });
    }
    summary.after_top_k = {left.count, left.weight};
    if (question_.top_p < 1.0) {
      const Prefix before = left;
      const auto target =
          static_cast<std::int64_t>(std::ceil(question_.top_p * static_cast<double>(before.mass)));
      const double share = question_.top_p * before.weight / summary.all.weight;
      left = cut(
          share, [](const Prefix& sum) { return sum.weight; },
          [&](const Prefix& sum) { return sum.mass >= target || sum.count >= before.count; });
    }
    summary.after_top_p = {left.count, left.weight};
    if (question_.min_p > 0.0f) {
      least_weight_ = question_.min_p;
      left = kept();
    }
    summary.after_min_p = {left.count, left.weight};
  }

  Prefix alone(std::int64_t token) const {
    return {1, token_weight::mass_of(scaled_[token]), static_cast<double>(scaled_[token])};
  }

  // Keeps tokens in order of likelihood until their sum is enough, which all tokens are. Sets the
  // last one. `share` of the row's `amount` is about enough.
  template <class Amount, class Enough>
  Prefix cut(double share, Amount amount, Enough enough) {
    auto [most, least] = bounds_of(share, amount);
    Prefix sum{};
    add_above(logits_, scaled_, vocab_size_, most, 0.0f, sum);
    collect(least, most);
    if (enough(sum) || !enough(with_collected(sum))) {
      // The sample was wrong, as it is where few tokens hold most of the row. All tokens below the
      // bound together hold less than what is not asked for.
      sum = Prefix{};
      const double rest =
          std::max(0.0, 1.0 - share) * all_weight_ / static_cast<double>(vocab_size_);
      collect(peak_ + static_cast<float>(std::log2(rest)) / question_.sharpness, kInfinity);
      if (!enough(with_collected(sum))) collect(-kInfinity, kInfinity);
    }
    return cut_tokens(sum, enough);
  }

  Prefix with_collected(Prefix sum) const {
    for (const std::int32_t token : scratch_.tokens) sum.add(alone(token));
    return sum;
  }

  // Logits between which the prefix ends that holds `share` of the row, as a sample of it says.
  template <class Amount>
  std::pair<float, float> bounds_of(double share, Amount amount) const {
    std::vector<Prefix>& buckets = scratch_.buckets;
    buckets.assign(kNumBuckets + 1, Prefix{});
    const float per_logit = question_.sharpness * kBucketsPerExponent;
    const std::int64_t stride = std::max<std::int64_t>(1, vocab_size_ / kSampledTokens);
    Prefix whole{};
    for (std::int64_t token = 0; token < vocab_size_; token += stride) {
      const float place = (peak_ - logits_[token]) * per_logit;
      const float bounded = std::min(place, float{kNumBuckets});
      buckets[static_cast<std::size_t>(bounded)].add(alone(token));
      whole.add(alone(token));
    }
    const double error = stride == 1 ? 1e-6 : kSampleError;
    const double low = (share - error) * amount(whole), high = (share + error) * amount(whole);
    Prefix sum{};
    std::size_t first = 0, end = 0;
    for (; end < buckets.size() && amount(sum) <= high; ++end) {
      sum.add(buckets[end]);
      if (amount(sum) < low) first = end + 1;
    }
    // Rounding may put a logit into a neighbour of its bucket.
    const auto logit_at = [&](std::size_t place) {
      return peak_ - static_cast<float>(place) / per_logit;
    };
    return {first == 0 ? kInfinity : logit_at(first),
            end >= kNumBuckets ? -kInfinity : logit_at(end + 1)};
  }

  // Collects the tokens with logits above `least` and not above `most`.
  void collect(float least, float most) const {
    std::vector<std::uint8_t>& marks = scratch_.marks;
    marks.resize(static_cast<std::size_t>(round_up(vocab_size_, sizeof(std::uint64_t))), 0);
    mark_between(logits_, vocab_size_, least, most, marks.data());
    std::vector<std::int32_t>& marked = scratch_.marked;
    marked.resize(marks.size());  // once: what it grows by is set to 0
    std::size_t count = 0;
    for (std::size_t i = 0; i < marks.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t eight;
      std::memcpy(&eight, marks.data() + i, sizeof(eight));
      if (eight == 0) continue;
      for (std::size_t j = i; j < i + sizeof(eight); ++j) {  // without branches
        marked[count] = static_cast<std::int32_t>(j);
        count += marks[j];
      }
    }
    scratch_.tokens.assign(marked.begin(), marked.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // Finds where the prefix ends among the collected tokens; `sum` is that of all likelier ones.
  template <class Enough>
  Prefix cut_tokens(Prefix sum, Enough enough) {
    std::vector<std::int32_t>& tokens = scratch_.tokens;
    while (tokens.size() > kSortedTokens && narrow(sum, enough)) {
    }
    std::sort(tokens.begin(), tokens.end(),
              [&](std::int32_t a, std::int32_t b) { return is_likelier(a, b); });
    for (const std::int32_t token : tokens) {
      last_ = token;
      sum.add(alone(token));
      if (enough(sum)) break;
    }
    return sum;
  }

  // Keeps of the collected tokens those of the bucket, of equal width in logits, in which the sum
  // becomes enough, and adds the likelier ones to it. False if all logits are equal.
  template <class Enough>
  bool narrow(Prefix& sum, Enough enough) {
    std::vector<std::int32_t>& tokens = scratch_.tokens;
    float least = kInfinity, most = -kInfinity;
    for (const std::int32_t token : tokens) {
      least = std::min(least, logits_[token]);
      most = std::max(most, logits_[token]);
    }
    if (least == most) return false;
    const double per_logit = (kNumBuckets - 1) / (static_cast<double>(most) - least);
    const auto place_of = [&](std::int32_t token) {
      return static_cast<std::size_t>((static_cast<double>(most) - logits_[token]) * per_logit);
    };
    std::vector<Prefix>& buckets = scratch_.buckets;
    buckets.assign(kNumBuckets, Prefix{});
    for (const std::int32_t token : tokens) buckets[place_of(token)].add(alone(token));
    std::size_t place = 0;
    for (; place + 1 < buckets.size(); ++place) {
      Prefix with = sum;
      with.add(buckets[place]);
      if (enough(with)) break;
      sum = with;
    }
    tokens.erase(std::remove_if(tokens.begin(), tokens.end(),
                                [&](std::int32_t token) { return place_of(token) != place; }),
                 tokens.end());
    return true;
  }

  // The tokens that are kept so far.
  Prefix kept() const {
    Prefix sum{};
    // Tokens with the same logit as the last one are kept before it, and not after it.
    const std::int64_t split = last_ + 1;
    if (last_ >= 0) {
      const float or_equal = std::nextafter(logits_[last_], -kInfinity);
      add_above(logits_, scaled_, split, or_equal, least_weight_, sum);
    }
    const float least = last_ >= 0 ? logits_[last_] : -kInfinity;
    add_above(logits_ + split, scaled_ + split, vocab_size_ - split, least, least_weight_, sum);
    return sum;
  }

  const float* const logits_;
  const std::int64_t vocab_size_;
  const float peak_;
  const RowQuestion& question_;
  RowSummaryScratch& scratch_;
  const float* scaled_ = nullptr;  // [V] weights at the temperature
  double all_weight_ = 0.0;        // of the row, at the temperature
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
