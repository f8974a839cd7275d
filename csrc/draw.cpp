// Draws tokens from rows of logits: each token arrives at noise / weight, the first one is drawn.

#include "draw.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/token_noise.h"
#include "kernels/token_weight.h"
#include "rounding.h"

namespace pellucid {
namespace {

using Candidate = DrawScratch::Candidate;
using Edit = DrawScratch::Edit;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Tokens whose weights fit into a first-level cache.
constexpr std::int64_t kPartTokens = 64 * kGroupTokens;

// The changes that a request makes to a row of logits before the temperature: biases, penalties,
// forbidden tokens. The destructor undoes them.
class Edits {
 public:
  Edits(float* logits, std::int64_t vocab_size, DrawScratch& scratch)
      : logits_(logits), scratch_(scratch) {
    if (scratch.edit_of.size() < static_cast<std::size_t>(vocab_size)) {
      scratch.edit_of.resize(static_cast<std::size_t>(vocab_size), 0);
    }
  }
  ~Edits() {
    for (const Edit& edit : scratch_.edits) {
      logits_[edit.token] = edit.original;
      scratch_.edit_of[static_cast<std::size_t>(edit.token)] = 0;
    }
    scratch_.edits.clear();
  }
  Edits(const Edits&) = delete;
  Edits& operator=(const Edits&) = delete;

  // False if a logit leaves the range of floats.
  bool make(const Draw& draw) {
    for (std::int64_t i = 0; i < draw.num_biases; ++i) {
      edit(draw.bias_ids[i]).logit += draw.biases[i];
    }
    for (std::int64_t i = 0; i < draw.num_text_tokens; ++i) {
      Edit& own = edit(draw.text[i]);
      own.is_in_text = true;
      if (i >= draw.num_prompt_tokens) ++own.num_in_output;
    }
    for (Edit& own : scratch_.edits) {
      if (own.original == -kInfinity) continue;
      penalise(draw, own);
      logits_[own.token] = static_cast<float>(own.logit);
      if (!std::isfinite(logits_[own.token])) return false;
    }
    for (std::int64_t i = 0; i < draw.num_forbidden; ++i) {
      logits_[edit(draw.forbidden[i]).token] = -kInfinity;
    }
    return true;
  }

 private:
  Edit& edit(std::int32_t token) {
    std::int32_t& index = scratch_.edit_of[static_cast<std::size_t>(token)];
    if (index == 0) {
      const float logit = logits_[token];
      scratch_.edits.push_back({token, logit, static_cast<double>(logit), false, 0});
      index = static_cast<std::int32_t>(scratch_.edits.size());
    }
    return scratch_.edits[static_cast<std::size_t>(index - 1)];
  }

  static void penalise(const Draw& draw, Edit& own) {
    if (own.is_in_text) {
      own.logit =
          own.logit > 0 ? own.logit / draw.repetition_penalty : own.logit * draw.repetition_penalty;
    }
    if (own.num_in_output > 0) {
      own.logit += -draw.presence_penalty;
      own.logit += -draw.frequency_penalty * static_cast<double>(own.num_in_output);
    }
  }

  float* const logits_;
  DrawScratch& scratch_;
};

bool is_edited(const Draw& draw) {
  return draw.num_biases > 0 || draw.num_forbidden > 0 || draw.num_text_tokens > 0;
}

// By logit; of equals the lower token first.
bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

bool is_more_typical(const Candidate& a, const Candidate& b) {
  return a.distance < b.distance || (a.distance == b.distance && a.token < b.token);
}

std::int64_t total_mass(std::vector<Candidate>::const_iterator begin,
                        std::vector<Candidate>::const_iterator end) {
  std::int64_t total = 0;
  for (; begin != end; ++begin) total += begin->mass;
  return total;
}

std::int64_t mass_to_reach(double share, std::int64_t total) {
  return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(total)));
}

// Keeps the shortest prefix, in the order of `less`, that holds `share` of the mass: quickselect.
template <class Less>
void keep_share(std::vector<Candidate>& candidates, double share, Less less) {
  auto begin = candidates.begin(), end = candidates.end();
  std::int64_t missing = mass_to_reach(share, total_mass(begin, end));
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, less);
    const std::int64_t mass = total_mass(begin, middle);
    if (mass >= missing) {
      end = middle;
    } else {
      missing -= mass;
      begin = middle;
    }
  }
  candidates.erase(end, candidates.end());
}

// A row after all edits, and the draw from it.
class Row {
 public:
  Row(const KernelTable& kernels, const float* logits, std::int64_t vocab_size, const Draw& draw,
      float peak, DrawScratch& scratch)
      : kernels_(kernels.sampling),
        logits_(logits),
        vocab_size_(vocab_size),
        draw_(draw),
        weighing_{peak, draw.sharpness},
        scratch_(scratch) {}

  std::int64_t first_of_peak() const {
    std::int64_t token = 0;
    while (logits_[token] != weighing_.peak || !is_allowed(token)) ++token;
    return token;
  }

  // Races all tokens of the vocabulary. If the winner is outside of the nucleus (top_p), all tokens
  // of the nucleus are likelier than the winner. So the race is repeated among the tokens that are
  // likelier than the winner, until the winner is in the nucleus.
  std::int64_t race() const {
    scratch_.weights.resize(static_cast<std::size_t>(round_up(vocab_size_, kGroupTokens)));
    Arrival first{std::numeric_limits<double>::infinity(), kUndrawn};
    const std::int64_t total = race_among_likelier(kUndrawn, first);
    if (draw_.top_p >= 1.0) return first.token;
    while (!is_in_nucleus(first.token, total)) {
      const std::int64_t outside = first.token;
      first = {std::numeric_limits<double>::infinity(), kUndrawn};
      race_among_likelier(outside, first);
    }
    return first.token;
  }

  // The same draw on a list of tokens, stage by stage: for parameters whose stages depend on the
  // exact tokens that the stage before kept.
  std::int64_t race_after_stages() const {
    std::vector<Candidate>& candidates = scratch_.candidates;
    collect();
    if (draw_.top_p < 1.0) keep_share(candidates, draw_.top_p, is_likelier);
    if (draw_.min_p > 0.0f) {
      const auto is_unlikely = [&](const Candidate& own) { return own.weight < draw_.min_p; };
      candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_unlikely),
                       candidates.end());
    }
    if (draw_.typical_p < 1.0) keep_typical(candidates);
    Arrival first{std::numeric_limits<double>::infinity(), kUndrawn};
    for (const Candidate& own : candidates) {
      if (own.weight == 0.0f) continue;
      const std::uint32_t bits = noise::upper_bits(draw_.key, own.token);
      if (!noise::may_arrive(bits, own.weight, noise::latest(first.time))) continue;
      noise::race(draw_.key, own.token, bits, own.weight, first);
    }
    return first.token;
  }

 private:
  bool is_allowed(std::int64_t token) const {
    return draw_.allowed == nullptr || (draw_.allowed[token / 32] >> token % 32 & 1) != 0;
  }

  // Calls f(columns) for the parts of columns [begin, end) in which one bound on logits tells the
  // tokens that are likelier than `token`: an equal logit is likelier before `token`, and not after
  // it.
  template <class F>
  void for_likelier(std::int64_t token, std::int64_t begin, std::int64_t end, F&& f) const {
    float above[kGroupTokens];
    const float logit = logits_[token];
    const float or_equal = std::nextafter(logit, -kInfinity);
    const std::int64_t group = token / kGroupTokens * kGroupTokens;
    const auto pass = [&](std::int64_t from, std::int64_t to) {
      from = std::max(from, begin), to = std::min(to, end);
      if (from < to) f(columns(from, to, above));
    };
    std::fill_n(above, kGroupTokens, or_equal);
    pass(0, group);
    std::fill_n(above + token % kGroupTokens, kGroupTokens - token % kGroupTokens, logit);
    pass(group, group + kGroupTokens);
    std::fill_n(above, kGroupTokens, logit);
    pass(group + kGroupTokens, vocab_size_);
  }

  Columns columns(std::int64_t begin, std::int64_t end, const float* above) const {
    return {logits_, draw_.allowed, begin, end, above, scratch_.weights.data()};
  }

  // kUndrawn: among all tokens. Leaves the weights in the scratch memory.
  std::int64_t race_among_likelier(std::int64_t token, Arrival& first) const {
    std::int64_t mass = 0;
    const auto race = [&](const Columns& part) {
      mass += kernels_.race(part, weighing_, draw_.min_p, draw_.key, first);
    };
    if (token == kUndrawn) {
      race(columns(0, vocab_size_, nullptr));
    } else {
      for_likelier(token, 0, vocab_size_, race);
    }
    return mass;
  }

  // Whether the tokens that are likelier than `token` hold less than `top_p` of the mass `total`.
  // Mostly a part of the row shows that the other tokens hold more than the rest.
  bool is_in_nucleus(std::int64_t token, std::int64_t total) const {
    const std::int64_t target = mass_to_reach(draw_.top_p, total);
    std::int64_t likelier = 0, other = 0;
    for (std::int64_t begin = 0; begin < vocab_size_; begin += kPartTokens) {
      const std::int64_t end = std::min(begin + kPartTokens, vocab_size_);
      const std::int64_t before = likelier;
      for_likelier(token, begin, end,
                   [&](const Columns& part) { likelier += kernels_.mass(part); });
      if (likelier >= target) return false;
      other += kernels_.mass(columns(begin, end, nullptr)) - (likelier - before);
      if (other > total - target) return true;
    }
    return true;
  }

  // Collects the `top_k` likeliest tokens, or all.
  void collect() const {
    std::vector<Candidate>& candidates = scratch_.candidates;
    candidates.clear();
    const std::int64_t k = draw_.top_k > 0 ? std::min(draw_.top_k, vocab_size_) : vocab_size_;
    const float least = least_peak(k);
    for (std::int64_t token = 0; token < vocab_size_; ++token) {
      const float logit = logits_[token];
      if (!(logit >= least) || logit == -kInfinity || !is_allowed(token)) continue;
      const float exponent = token_weight::exponent_of(logit, weighing_.peak, weighing_.sharpness);
      const float weight = token_weight::weight_of(exponent);
      candidates.push_back({logit, exponent, weight, token_weight::mass_of(weight), 0.0, token});
    }
    if (static_cast<std::size_t>(k) < candidates.size()) {
      std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), is_likelier);
      candidates.resize(static_cast<std::size_t>(k));
    }
  }

  // A logit that at least k tokens reach: the k-th largest peak of a group. -infinity where finding
  // it takes longer than it saves.
  float least_peak(std::int64_t k) const {
    const std::int64_t num_groups = vocab_size_ / kGroupTokens;
    if (k > num_groups / 2) return -kInfinity;
    scratch_.peaks.resize(static_cast<std::size_t>(num_groups));
    for (std::int64_t group = 0; group < num_groups; ++group) {
      const std::int64_t begin = group * kGroupTokens;
      scratch_.peaks[static_cast<std::size_t>(group)] =
          kernels_.peak({logits_, draw_.allowed, begin, begin + kGroupTokens, nullptr, nullptr});
    }
    std::nth_element(scratch_.peaks.begin(), scratch_.peaks.begin() + (k - 1), scratch_.peaks.end(),
                     [](float a, float b) { return a > b; });
    return scratch_.peaks[static_cast<std::size_t>(k - 1)];
  }

  void keep_typical(std::vector<Candidate>& candidates) const {
    std::int64_t mass = 0, sum = 0;
    for (const Candidate& own : candidates) {
      mass += own.mass;
      sum += static_cast<std::int64_t>(static_cast<double>(own.mass) *
                                       static_cast<double>(own.exponent));
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(mass);
    for (Candidate& own : candidates) {
      own.distance = std::abs(static_cast<double>(own.exponent) - mean);
    }
    keep_share(candidates, draw_.typical_p, is_more_typical);
  }

  const SamplingKernels& kernels_;
  const float* const logits_;
  const std::int64_t vocab_size_;
  const Draw& draw_;
  const Weighing weighing_;
  DrawScratch& scratch_;
};

std::int64_t draw_from(const KernelTable& kernels, const float* logits, std::int64_t vocab_size,
                       float peak, const Draw& draw, DrawScratch& scratch) {
  if (!std::isfinite(peak)) return kUndrawn;
  const Row row(kernels, logits, vocab_size, draw, peak, scratch);
  if (draw.sharpness == 0.0f) return row.first_of_peak();
  return draw.top_k > 0 || draw.typical_p < 1.0 ? row.race_after_stages() : row.race();
}

}  // namespace

std::int64_t draw_token(const KernelTable& kernels, float* logits, std::int64_t vocab_size,
                        std::int64_t largest, const Draw& draw, DrawScratch& scratch) {
  assert(0 <= largest && largest < vocab_size);
  const float peak = logits[largest];
  if (!std::isfinite(peak)) return kUndrawn;
  if (!is_edited(draw) && draw.allowed == nullptr) {
    return draw_from(kernels, logits, vocab_size, peak, draw, scratch);
  }
  Edits edits(logits, vocab_size, scratch);
  if (!edits.make(draw)) return kUndrawn;
  const float peak_left =
      kernels.sampling.peak({logits, draw.allowed, 0, vocab_size, nullptr, nullptr});
  return draw_from(kernels, logits, vocab_size, peak_left, draw, scratch);
}

}  // namespace pellucid
