// Summarizes a row of logits. The tokens that top_k and top_p keep are a prefix of the order of
// likelihood. A sample of the row shows about where it ends, so that few tokens have to be ordered.
#include "row_summary.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

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

using Chunk = RowSummaryScratch::Chunk;
using Prefix = RowSummaryScratch::Prefix;
using Sample = RowSummaryScratch::Sample;

constexpr int kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
using Integers = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

constexpr std::int64_t kBlockTokens = 128;
constexpr std::int64_t kChunkTokens = 8192;  // stay in a first-level cache
constexpr std::int64_t kChunksAlone = 2;     // end before another thread would be awake
constexpr std::int64_t kSampledTokens = 8192;
constexpr int kNumBuckets = 1024;
// Of the sample: tokens of less than 2^-32 of the peak's weight share the last bucket.
constexpr float kBucketsPerExponent = kNumBuckets / 32.0f;
constexpr double kDeviations = 4.0;      // of a sum of the sample
constexpr double kEnoughSampled = 16.0;  // tokens, to know the error of their sum
constexpr std::size_t kMarksTogether = 8;
constexpr std::size_t kSortedTokens = 64;
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

#define PELLUCID_INLINE inline __attribute__((always_inline))

PELLUCID_INLINE Floats load(const float* values) {
  Floats loaded;
  __builtin_memcpy(&loaded, values, sizeof(loaded));
  return loaded;
}

template <class Vector>
PELLUCID_INLINE auto sum_of(const Vector& lanes) {
  auto sum = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}

PELLUCID_INLINE Floats weights_of(Floats distance, float sharpness) {
  Floats exponent = distance * sharpness;
  const Integers counts = exponent > token_weight::kMinExponent;  // -1: true
  exponent = counts ? exponent : Floats{} + token_weight::kMinExponent;
  Floats whole;
  const Floats power = token_weight::power_of_fraction(exponent, whole);
  const Integers bits = (__builtin_convertvector(whole, Integers) + 127) << 23;
  Floats factor;
  __builtin_memcpy(&factor, &bits, sizeof(factor));
  return counts ? power * factor : Floats{};
}

PELLUCID_INLINE float weight_of(float distance, float sharpness) {
  const float exponent = distance * sharpness;
  return exponent > token_weight::kMinExponent ? token_weight::weight_of(exponent) : 0.0f;
}

// Sums of masses, of at most 2^14 vectors: the halves of masses do not overflow 32 bits.
struct MassSums {
  Integers low{}, high{};

  PELLUCID_INLINE void add(Floats weights) {
    const Integers units =
        __builtin_convertvector(weights * token_weight::kUnitsPerWeight + 0.5f, Integers);
    low += units & 0xffff;
    high += units >> 16;
  }
  PELLUCID_INLINE std::int64_t sum() const {
    std::int64_t total = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      total += std::int64_t{low[lane]} + std::int64_t{high[lane]} * 0x10000;
    }
    return total;
  }
};

// Weighs the tokens of a chunk at the temperature, into `scaled`, and sums up these weights, their
// masses, the weights at temperature 1, and those times the distance to the peak. The largest logit
// of each block of tokens goes to `peaks`.
PELLUCID_FOR_EACH_ISA
void weigh(const float* __restrict logits, std::int64_t size, float peak, float sharpness,
           float* __restrict scaled, float* __restrict peaks, Chunk& sums) {
  const bool is_scaled = sharpness != kLog2E;
  Doubles totals{}, weighted{}, scaled_totals{};
  MassSums masses;
  std::int64_t i = 0;
  for (; i + kBlockTokens <= size; i += kBlockTokens) {
    // Few floats are added before their sum becomes a double.
    Floats part{}, weighted_part{}, scaled_part{}, largest = Floats{} - kInfinity;
    for (std::int64_t j = i; j < i + kBlockTokens; j += kLanes) {
      const Floats logit = load(logits + j), distance = logit - peak;
      largest = logit > largest ? logit : largest;
      const Floats own = weights_of(distance, kLog2E);
      const Floats scaled_own = is_scaled ? weights_of(distance, sharpness) : own;
      part += own;
      weighted_part += own * distance;
      scaled_part += scaled_own;
      masses.add(scaled_own);
      __builtin_memcpy(scaled + j, &scaled_own, sizeof(scaled_own));
    }
    totals += __builtin_convertvector(part, Doubles);
    weighted += __builtin_convertvector(weighted_part, Doubles);
    scaled_totals += __builtin_convertvector(scaled_part, Doubles);
    float& block_peak = peaks[i / kBlockTokens] = largest[0];
    for (int lane = 1; lane < kLanes; ++lane) block_peak = std::max(block_peak, largest[lane]);
  }
  if (i < size) peaks[i / kBlockTokens] = *std::max_element(logits + i, logits + size);
  for (; i < size; ++i) {
    const float distance = logits[i] - peak;
    const double own = static_cast<double>(weight_of(distance, kLog2E));
    scaled[i] = weight_of(distance, sharpness);
    sums.total += own;
    sums.weighted += own * static_cast<double>(distance);
    sums.scaled += static_cast<double>(scaled[i]);
    sums.mass += token_weight::mass_of(scaled[i]);
  }
  sums.total += sum_of(totals);
  sums.weighted += sum_of(weighted);
  sums.scaled += sum_of(scaled_totals);
  sums.mass += masses.sum();
}

// How many of the values are greater than `least`; with `or_equal` also those that equal it.
PELLUCID_FOR_EACH_ISA
std::int64_t count_above(const float* values, std::int64_t size, float least, bool or_equal) {
  const float bound = or_equal ? std::nextafter(least, -kInfinity) : least;
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < size; ++i) count += values[i] > bound;
  return count;
}

// Adds of at most kChunkTokens tokens those with logits above `least` and weights of at least
// `least_weight`.
PELLUCID_FOR_EACH_ISA
void add_above(const float* __restrict logits, const float* __restrict weights, std::int64_t size,
               float least, float least_weight, Prefix& sum) {
  Integers counts{};
  MassSums masses;
  Doubles sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats weight = load(logits + i) > least ? load(weights + i) : Floats{} - 1.0f;
    counts += weight >= least_weight ? Integers{} + 1 : Integers{};
    const Floats own = weight >= least_weight ? weight : Floats{};
    masses.add(own);
    sums += __builtin_convertvector(own, Doubles);
  }
  sum.count += sum_of(counts);
  sum.mass += masses.sum();
  sum.weight += sum_of(sums);
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
  Row(const KernelTable& kernels, ThreadPool& pool, const float* logits, std::int64_t vocab_size,
      const RowQuestion& question, RowSummaryScratch& scratch)
      : kernels_(kernels),
        pool_(pool),
        logits_(logits),
        vocab_size_(vocab_size),
        question_(question),
        stride_(std::max<std::int64_t>(1, vocab_size / kSampledTokens)),
        scratch_(scratch) {
    scratch.chunks.assign(static_cast<std::size_t>(num_pieces(kChunkTokens)), Chunk{});
    scratch.scaled.resize(static_cast<std::size_t>(vocab_size));
    scratch.peaks.resize(static_cast<std::size_t>(num_pieces(kBlockTokens)));
    scratch.sampled.resize(static_cast<std::size_t>(num_pieces(stride_)));
    scratch.sample.clear();
    scratch.marked.resize(static_cast<std::size_t>(vocab_size) + kMarksTogether);
    scaled_ = scratch.scaled.data();
  }

  bool summarize(RowSummary& summary) {
    peak_ = largest();
    if (!std::isfinite(peak_)) return false;
    summary.peak = peak_;
    const Chunk sums = weigh_all();
    if (!std::isfinite(sums.weighted)) return false;  // a logit is -infinity or NaN
    summary.total = sums.total;
    summary.weighted = sums.weighted;
    summary.all = {vocab_size_, sums.scaled};
    summary.rank = 1 + sums.num_likelier;
    find_likeliest(summary.likeliest);
    truncate(summary, sums.mass);
    summary.is_kept = is_kept(question_.token);
    for (const std::int64_t each : summary.likeliest) summary.are_kept.push_back(is_kept(each));
    return true;
  }

 private:
  // Of so many tokens, the row.
  std::int64_t num_pieces(std::int64_t tokens) const { return (vocab_size_ + tokens - 1) / tokens; }

  // By logit; of equals the lower token first.
  bool is_likelier(std::int64_t a, std::int64_t b) const {
    return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
  }

  bool is_kept(std::int64_t token) const {
    return !(last_ >= 0 && is_likelier(last_, token)) && scaled_[token] >= question_.min_p;
  }

  // Calls f(chunk, begin, end) for each chunk of tokens, on all threads.
  template <class F>
  void for_chunks(F&& f) const {
    const std::int64_t num_chunks = num_pieces(kChunkTokens);
    auto task = [&](Worker& worker) {
      worker.parallel_for(num_chunks, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t number = first; number < last; ++number) {
          const std::int64_t begin = number * kChunkTokens;
          f(scratch_.chunks[static_cast<std::size_t>(number)], begin,
            std::min(begin + kChunkTokens, vocab_size_));
        }
      });
    };
    if (num_chunks <= kChunksAlone) {
      pool_.run_alone(task);
    } else {
      pool_.run(task);
    }
  }

  float largest() const {
    for_chunks([&](Chunk& chunk, std::int64_t begin, std::int64_t end) {
      chunk.peak = kernels_.elementwise.largest(logits_ + begin, end - begin);
    });
    float peak = -kInfinity;
    for (const Chunk& chunk : scratch_.chunks) peak = std::max(peak, chunk.peak);
    return peak;
  }

  Chunk weigh_all() const {
    for_chunks([&](Chunk& chunk, std::int64_t begin, std::int64_t end) {
      weigh(logits_ + begin, end - begin, peak_, question_.sharpness,
            scratch_.scaled.data() + begin, scratch_.peaks.data() + begin / kBlockTokens, chunk);
      const std::int64_t split = std::clamp(question_.token, begin, end);
      const float least = logits_[question_.token];
      chunk.num_likelier = count_above(logits_ + begin, split - begin, least, true) +
                           count_above(logits_ + split, end - split, least, false);
      for (std::int64_t number = (begin + stride_ - 1) / stride_; number * stride_ < end;
           ++number) {
        const std::int64_t token = number * stride_;
        scratch_.sampled[static_cast<std::size_t>(number)] = {logits_[token], scaled_[token]};
      }
    });
    Chunk sums;
    for (const Chunk& chunk : scratch_.chunks) {
      sums.total += chunk.total;
      sums.weighted += chunk.weighted;
      sums.scaled += chunk.scaled;
      sums.mass += chunk.mass;
      sums.num_likelier += chunk.num_likelier;
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
    for (std::size_t block = 0; block < scratch_.peaks.size(); ++block) {
      if (!(scratch_.peaks[block] > least)) continue;
      const auto begin = static_cast<std::int64_t>(block) * kBlockTokens;
      const std::int64_t end = std::min(begin + kBlockTokens, vocab_size_);
      for (std::int64_t token = begin; token < end; ++token) offer(token);
    }
  }

  void truncate(RowSummary& summary, std::int64_t mass) {
    Prefix left{vocab_size_, mass, summary.all.weight};
    if (question_.top_k > 0 && question_.top_k < vocab_size_) {
      left = cut(
          -kInfinity, static_cast<double>(question_.top_k), static_cast<double>(vocab_size_),
          [](const Sample& sum) { return std::pair(sum.count, sum.count); },
          [&](const Prefix& sum) { return sum.count >= question_.top_k; });
    }
    summary.after_top_k = {left.count, left.weight};
    if (question_.top_p < 1.0) {
      const Prefix before = left;
      const auto target =
          static_cast<std::int64_t>(std::ceil(question_.top_p * static_cast<double>(before.mass)));
      const double all = summary.all.weight, weight = question_.top_p * before.weight;
      // All tokens below this logit together weigh less than what is left out.
      const double exponent = std::log2((all - weight) / static_cast<double>(vocab_size_));
      const float least = peak_ + static_cast<float>(exponent) / question_.sharpness;
      left = cut(
          least, weight, all, [](const Sample& sum) { return std::pair(sum.weight, sum.squares); },
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
  // last one. About `amount` of `total` is enough, in the unit of `amounts_of`; the tokens above
  // `safe` mostly are.
  template <class AmountsOf, class Enough>
  Prefix cut(float safe, double amount, double total, AmountsOf amounts_of, Enough enough) {
    if (scratch_.sample.empty()) take_sample();
    const auto [most, least] = bounds_of(amount, total, amounts_of);
    Prefix sum = collect(std::max(least, safe), most);
    if (enough(sum) || !enough(with_collected(sum))) {  // the sample was wrong
      sum = Prefix{};
      collect(safe, kInfinity);
      if (!enough(with_collected(sum))) collect(-kInfinity, kInfinity);
    }
    return cut_tokens(sum, enough);
  }

  Prefix with_collected(Prefix sum) const {
    for (const std::int32_t token : scratch_.tokens) sum.add(alone(token));
    return sum;
  }

  void take_sample() {
    std::vector<Sample>& buckets = scratch_.sample;
    buckets.resize(kNumBuckets + 1);
    for (const RowSummaryScratch::SampledToken& token : scratch_.sampled) {
      const float place = (peak_ - token.logit) * question_.sharpness * kBucketsPerExponent;
      Sample& own = buckets[static_cast<std::size_t>(std::min(place, float{kNumBuckets}))];
      const auto weight = static_cast<double>(token.weight);
      own.add({1.0, weight, weight * weight});
    }
  }

  // Logits between which the prefix ends that holds `amount` of `total`, as the sample says. What
  // is sampled is the smaller one of the prefix and the rest.
  template <class AmountsOf>
  std::pair<float, float> bounds_of(double amount, double total, AmountsOf amounts_of) const {
    const std::vector<Sample>& buckets = scratch_.sample;
    const bool is_rest = amount > total / 2;
    const double wanted = is_rest ? total - amount : amount;
    // Buckets that surely hold less than what is wanted, and those that probably hold all of it.
    std::size_t less = 0, all = 0;
    Sample sum{};
    for (; all < buckets.size(); ++all) {
      sum.add(buckets[is_rest ? buckets.size() - 1 - all : all]);
      const auto [sampled, squares] = amounts_of(sum);
      const double error = kDeviations * std::sqrt(squares);
      const double scale = static_cast<double>(stride_);
      if (sum.count >= kEnoughSampled && scale * (sampled + error) < wanted) less = all + 1;
      if (scale * (sampled - error) > wanted) break;
    }
    ++all;
    if (is_rest) {
      std::tie(less, all) =
          std::pair(buckets.size() - std::min(all, buckets.size()), buckets.size() - less);
    }
    // Rounding may put a logit into a neighbour of its bucket.
    const auto logit_at = [&](std::size_t place) {
      return peak_ - static_cast<float>(place) / (question_.sharpness * kBucketsPerExponent);
    };
    return {less <= 1 ? kInfinity : logit_at(less - 1),
            all >= kNumBuckets ? -kInfinity : logit_at(all + 1)};
  }

  // Collects the tokens with logits above `least` and not above `most`. Returns the sum of those
  // above `most`.
  Prefix collect(float least, float most) const {
    for_chunks([&](Chunk& chunk, std::int64_t begin, std::int64_t end) {
      const std::int64_t size = end - begin;
      chunk.above = {};
      if (most < kInfinity) {
        add_above(logits_ + begin, scaled_ + begin, size, most, 0.0f, chunk.above);
      }
      chunk.num_marked = mark(begin, size, least, most);
    });
    Prefix above{};
    scratch_.tokens.clear();
    const std::int32_t* marked = scratch_.marked.data();
    for (const Chunk& chunk : scratch_.chunks) {
      above.add(chunk.above);
      scratch_.tokens.insert(scratch_.tokens.end(), marked, marked + chunk.num_marked);
      marked += kChunkTokens;
    }
    return above;
  }

  // Writes the tokens of a chunk with logits above `least` and not above `most` to its place in
  // `marked`. Returns their number.
  std::int64_t mark(std::int64_t begin, std::int64_t size, float least, float most) const {
    alignas(kMarksTogether) std::uint8_t marks[kChunkTokens];
    mark_between(logits_ + begin, size, least, most, marks);
    std::fill(marks + size, marks + kChunkTokens, std::uint8_t{0});
    std::int32_t* const marked = scratch_.marked.data() + begin;
    std::size_t count = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(size); i += kMarksTogether) {
      std::uint64_t together;
      static_assert(sizeof(together) == kMarksTogether);
      std::memcpy(&together, marks + i, kMarksTogether);
      if (together == 0) continue;
      for (std::size_t j = i; j < i + kMarksTogether; ++j) {  // without branches
        marked[count] = static_cast<std::int32_t>(begin) + static_cast<std::int32_t>(j);
        count += marks[j];
      }
    }
    return static_cast<std::int64_t>(count);
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
    // Tokens with the same logit as the last one are kept before it, and not after it.
    const float after = last_ >= 0 ? logits_[last_] : -kInfinity;
    const float before = std::nextafter(after, -kInfinity);
    for_chunks([&](Chunk& chunk, std::int64_t begin, std::int64_t end) {
      const std::int64_t split = std::clamp(last_ + 1, begin, end);
      chunk.above = {};
      add_above(logits_ + begin, scaled_ + begin, split - begin, before, least_weight_,
                chunk.above);
      add_above(logits_ + split, scaled_ + split, end - split, after, least_weight_, chunk.above);
    });
    Prefix sum{};
    for (const Chunk& chunk : scratch_.chunks) sum.add(chunk.above);
    return sum;
  }

  const KernelTable& kernels_;
  ThreadPool& pool_;
  const float* const logits_;
  const std::int64_t vocab_size_;
  const RowQuestion& question_;
  const std::int64_t stride_;  // between sampled tokens
  RowSummaryScratch& scratch_;
  float peak_ = 0.0f;
  const float* scaled_ = nullptr;  // [V] weights at the temperature
  float least_weight_ = 0.0f;      // that min_p keeps
  std::int64_t last_ = -1;  // the least likely token that top_k and top_p keep; -1: they keep all
};

}  // namespace

bool summarize_row(const KernelTable& kernels, ThreadPool& pool, const float* logits,
                   std::int64_t vocab_size, const RowQuestion& question, RowSummaryScratch& scratch,
                   RowSummary& summary) {
  assert(0 <= question.token && question.token < vocab_size);
  assert(0 <= question.num_likeliest && question.num_likeliest <= vocab_size);
  return Row(kernels, pool, logits, vocab_size, question, scratch).summarize(summary);
}

}  // namespace pellucid
