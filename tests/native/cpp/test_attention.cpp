// Attention over the paged cache, every format and instruction set level, against its definition in
// f64; and the promise that a row's bits depend on nothing but the request's own tokens.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention.h"
#include "check.h"
#include "float_bits.h"
#include "isa.h"
#include "open_groups.h"

namespace {

using namespace pellucid;

constexpr double kUnitRoundoff = 0x1p-24;  // of f32, rounding to nearest
constexpr double kBF16Roundoff = 0x1p-8;   // of 8 bits

// AddressSanitizer checks each access of kernels that are hardly optimized: all rows would take an
// hour. The cases (formats, instruction sets, models, block sizes, lengths) stay; of the rows of a
// case, those that repeat an earlier row's path through the kernels are left out.
constexpr bool kFewRows = PELLUCID_SANITIZED;

struct Model {
  KVFormat format;
  std::int64_t num_heads, num_kv_heads, head_dim;
  std::int64_t sliding_window = 0;
  float softcap = 0;
  float query_size = 1;  // large ones make the softmax a choice of few keys

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
  std::int64_t q_size() const { return num_heads * head_dim; }
  std::int64_t kv_size() const { return num_kv_heads * head_dim; }
};

// A request's q, k and v at every position.
struct Sequence {
  std::vector<float> q, k, v;
  std::int64_t length;

  Sequence(const Model& model, std::int64_t num_tokens, unsigned seed) : length(num_tokens) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& numbers, std::int64_t size, float factor) {
      numbers.resize(static_cast<std::size_t>(size));
      for (float& x : numbers) x = factor * normal(random);
    };
    fill(q, num_tokens * model.q_size(), model.query_size);
    fill(k, num_tokens * model.kv_size(), 1.0f);
    fill(v, num_tokens * model.kv_size(), 1.0f);
  }
};

// Positions [begin, end) of a sequence, as a step's share of it.
struct Share {
  const Sequence* sequence;
  std::int64_t begin, end;
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A cache, full of what other requests left behind, and what runs steps on it.
class Engine {
 public:
  Engine(const KernelTable& kernels, const Model& model, std::int64_t at_least, int num_threads,
         unsigned seed)
      : Engine(num_threads, seed, kernels, model,
               has_open_keys(model.format) ? std::max<std::int64_t>(at_least, kOpenTokens)
                                           : at_least) {}

 private:
  Engine(int num_threads, unsigned seed, const KernelTable& kernels, const Model& model,
         std::int64_t block_size)
      : kernels_(kernels),
        model_(model),
        cache_({model.format, block_size, {{2, model.num_kv_heads, model.head_dim}}},
               kNumSlots / block_size, {kMaxSequences, kMaxTokens, true}),
        plan_(limits(model, num_threads)),
        scratch_(attention_scratch_bytes(plan_.limits())),
        random_(seed) {
    for (std::int32_t block = 0; block < kNumSlots / block_size; ++block)
      free_blocks_.push_back(block);
    std::shuffle(free_blocks_.begin(), free_blocks_.end(), random_);
    const std::vector<float> rests(static_cast<std::size_t>(model.kv_size()),
                                   std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
      for (std::int64_t sequence = 0; sequence < kMaxSequences; sequence += kMaxSequences - 1) {
        const OpenGroups groups{sequence, slot, slot / kOpenTokens, 0};
        store({rests.data(), rests.data(), model.kv_size(), &slot, &groups, slot}, 1);
      }
    }
  }

 public:
  // Stores K and V of the shares, as steps before did whose y nobody looks at.
  void fill(const std::vector<Share>& shares) { fill(shares, open_groups_of(shares)); }

  // y of the shares' rows, [T, H, D]. What comes before a share has been stored before.
  std::vector<float> step(const std::vector<Share>& shares) {
    const std::vector<OpenGroups> open_groups = open_groups_of(shares);
    fill(shares, open_groups);
    std::vector<std::int32_t> query_start{0}, seq_lens, tables;
    std::vector<float> q;
    const std::int64_t widest = ceil_div(kMaxLength, cache_.shape().block_size);
    for (const Share& share : shares) {
      q.insert(q.end(), share.sequence->q.begin() + share.begin * model_.q_size(),
               share.sequence->q.begin() + share.end * model_.q_size());
      query_start.push_back(query_start.back() +
                            static_cast<std::int32_t>(share.end - share.begin));
      seq_lens.push_back(static_cast<std::int32_t>(share.end));
      const std::vector<std::int32_t>& table = block_table(share.sequence);
      tables.insert(tables.end(), table.begin(), table.end());
      tables.resize(seq_lens.size() * static_cast<std::size_t>(widest), -1);
    }

    plan_.make({static_cast<std::int64_t>(shares.size()), query_start.data(), seq_lens.data()},
               model_.sliding_window);
    const AttentionOptions options{model_.scale(), model_.softcap, model_.sliding_window};
    std::vector<float> y(q.size(), std::numeric_limits<float>::quiet_NaN());
    const AttentionArrays arrays{q.data(),      model_.q_size(), y.data(), model_.q_size(),
                                 tables.data(), widest,          nullptr,  open_groups.data()};
    // Any order of items must do, and a plan serves one layer after another.
    std::vector<std::int64_t> order;
    for (std::size_t i = 0; i < plan_.items().size(); ++i) {
      order.push_back(static_cast<std::int64_t>(i));
    }
    for (int layer = 0; layer < 2; ++layer) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::int64_t i : order) {
        run_attention(kernels_, model_.format, cache_.layer({layer}), plan_, options, arrays, i,
                      i + 1, scratch_.data());
      }
    }
    num_splits_seen_ += std::count_if(plan_.items().begin(), plan_.items().end(),
                                      [](const AttentionItem& item) { return item.split >= 0; });
    return y;
  }

  std::int64_t num_splits_seen() const { return num_splits_seen_; }

 private:
  static constexpr std::int64_t kNumSlots = 2048;
  static constexpr std::int64_t kMaxLength = 1024;
  static constexpr std::int64_t kMaxSequences = 4;
  static constexpr std::int64_t kMaxTokens = 1024;

  void fill(const std::vector<Share>& shares, const std::vector<OpenGroups>& open_groups) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const Share& share = shares[i];
      const std::vector<std::int64_t> slots = slots_of(share);
      const std::int64_t at = share.begin * model_.kv_size();
      store({share.sequence->k.data() + at, share.sequence->v.data() + at, model_.kv_size(),
             slots.data(), &open_groups[i], share.begin},
            static_cast<std::int64_t>(slots.size()));
    }
  }

  // Of the shares of a step; each sequence has a slot.
  std::vector<OpenGroups> open_groups_of(const std::vector<Share>& shares) {
    std::vector<std::int32_t> query_start{0}, seq_lens, slots;
    for (const Share& share : shares) {
      query_start.push_back(query_start.back() +
                            static_cast<std::int32_t>(share.end - share.begin));
      seq_lens.push_back(static_cast<std::int32_t>(share.end));
      block_table(share.sequence);  // makes one for a new sequence
      const auto is_own = [&](const auto& each) { return each.first == share.sequence; };
      slots.push_back(static_cast<std::int32_t>(
          std::find_if(tables_.begin(), tables_.end(), is_own) - tables_.begin()));
    }
    CHECK(tables_.size() <= kMaxSequences);
    return plan_open_groups({static_cast<std::int64_t>(shares.size()), query_start.data(),
                             seq_lens.data(), slots.data()});
  }

  static AttentionLimits limits(const Model& model, int num_threads) {
    return {kMaxTokens,     16,         kMaxLength, model.num_heads, model.num_kv_heads,
            model.head_dim, num_threads};
  }

  // Of a share's positions, in blocks that are the sequence's own from now on.
  std::vector<std::int64_t> slots_of(const Share& share) {
    const std::int64_t block_size = cache_.shape().block_size;
    std::vector<std::int32_t>& table = block_table(share.sequence);
    while (static_cast<std::int64_t>(table.size()) < ceil_div(share.end, block_size)) {
      CHECK(!free_blocks_.empty());
      table.push_back(free_blocks_.back());
      free_blocks_.pop_back();
    }
    std::vector<std::int64_t> slots;
    for (std::int64_t p = share.begin; p < share.end; ++p) {
      slots.push_back(table[static_cast<std::size_t>(p / block_size)] * block_size +
                      p % block_size);
    }
    return slots;
  }

  // Head by head, as threads share it out.
  void store(const KVRows& rows, std::int64_t num_tokens) {
    for (int layer = 0; layer < 2; ++layer) {
      for (std::int64_t head = 0; head < model_.num_kv_heads; ++head) {
        store_kv(kernels_, model_.format, cache_.layer({layer}), rows, num_tokens, head, head + 1);
      }
    }
  }

  std::vector<std::int32_t>& block_table(const Sequence* sequence) {
    for (auto& [owner, table] : tables_) {
      if (owner == sequence) return table;
    }
    tables_.emplace_back(sequence, std::vector<std::int32_t>{});
    return tables_.back().second;
  }

  const KernelTable& kernels_;
  const Model model_;
  KVCache cache_;
  AttentionPlan plan_;
  AlignedBuffer scratch_;
  std::mt19937 random_;
  std::vector<std::int32_t> free_blocks_;
  std::vector<std::pair<const Sequence*, std::vector<std::int32_t>>> tables_;
  std::int64_t num_splits_seen_ = 0;
};

double rounded_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return double{float_from_bits((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u)};
}

// Numbers as they are kept, and what codes they are multiples of.
struct Stored {
  std::vector<double> numbers;
  std::vector<double> scales;  // of each number; 0 for formats without
};

// Scales of queries are f32, those of keys and values bf16, rounded away from zero.
float rounded_up_to_bf16(float scale) {
  std::uint32_t bits;
  std::memcpy(&bits, &scale, sizeof(bits));
  return float_from_bits((bits + 0xffffu) & 0xffff0000u);
}

// In groups of 32, zeros behind the end: partners 16, 8, 4, 2 and 1 apart become their sum and
// their difference.
template <class Number>
std::vector<Number> rotated(const Number* x, std::int64_t size, Number factor) {
  std::vector<Number> y(static_cast<std::size_t>(ceil_div(size, kKVGroupDims) * kKVGroupDims));
  std::transform(x, x + size, y.begin(), [&](Number number) { return factor * number; });
  for (std::size_t distance = kKVGroupDims / 2; distance > 0; distance /= 2) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i & distance) continue;
      const Number a = y[i], b = y[i + distance];
      y[i] = a + b;
      y[i + distance] = a - b;
    }
  }
  return y;
}

float code_of_4_bits(float x, float scale) {
  return std::min(std::max(std::nearbyint(x * (1.0f / scale)), -8.0f), 7.0f);
}

// Of nine scales the one with the smallest squared error, summed as the definition does.
float best_scale(const float* x, float extreme) {
  float best = 0, least = 0;
  for (const float code : {8.0f, 7.75f, 8.25f, 7.5f, 8.5f, 7.25f, 8.75f, 7.0f, 9.0f}) {
    const float scale = rounded_up_to_bf16(extreme / -code);
    float errors[kKVGroupDims];
    for (int i = 0; i < kKVGroupDims; ++i) {
      const float off = code_of_4_bits(x[i], scale) * scale - x[i];
      errors[i] = off * off;
    }
    for (int half = kKVGroupDims / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) errors[i] += errors[i + half];
    }
    if (best == 0 || errors[0] < least) {
      best = scale;
      least = errors[0];
    }
  }
  return best;
}

Stored quantized(const float* x, std::int64_t size, std::int64_t group, int bits) {
  Stored stored;
  for (std::int64_t begin = 0; begin < size; begin += group) {
    const std::int64_t end = std::min(begin + group, size);
    float extreme = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
    }
    const float scale =
        bits == 8 ? rounded_up_to_bf16(std::abs(extreme) / 127.0f) : best_scale(x + begin, extreme);
    for (std::int64_t i = begin; i < end; ++i) {
      float code = 0;
      if (extreme != 0) {
        code = bits == 8 ? std::nearbyint(x[i] * (1.0f / scale)) : code_of_4_bits(x[i], scale);
      }
      stored.numbers.push_back(double{scale} * double{code});
      stored.scales.push_back(std::abs(double{scale}));
    }
  }
  return stored;
}

Stored rotated_codes(const float* x, std::int64_t size, int bits) {
  const std::vector<float> all = rotated(x, size, 1.0f / 8.0f);
  return quantized(all.data(), static_cast<std::int64_t>(all.size()), kKVGroupDims, bits);
}

// A query, rotated, as 8-bit codes, each group with a scale in f32.
std::vector<double> quantized_query(const float* q, std::int64_t size) {
  const std::vector<float> all = rotated(q, size, 1.0f / 4.0f);
  std::vector<double> numbers;
  for (auto group = all.begin(); group != all.end(); group += kKVGroupDims) {
    const float amax = std::abs(*std::max_element(
        group, group + kKVGroupDims, [](float a, float b) { return std::abs(a) < std::abs(b); }));
    for (int i = 0; i < kKVGroupDims; ++i) {
      numbers.push_back(double{amax / 127.0f} * double{std::nearbyint(group[i] * (127.0f / amax))});
    }
  }
  return numbers;
}

Stored in_floats(KVFormat format, const float* x, std::int64_t size) {
  Stored stored;
  for (std::int64_t i = 0; i < size; ++i) {
    stored.numbers.push_back(format == KVFormat::kF32 ? double{x[i]} : rounded_to_bf16(x[i]));
    stored.scales.push_back(0);
  }
  return stored;
}

bool has_codes(KVFormat format) { return format >= KVFormat::kInt8; }
bool has_rotated_values(KVFormat format) { return format > KVFormat::kInt8; }

float rounded_bf16(float x) { return static_cast<float>(rounded_to_bf16(x)); }

// Keys of 32 positions of a kv-head: each dimension has a scale and a minimum.
struct KeyGroup {
  std::vector<float> scales, minimums, codes;  // [D], [D], [32, D]

  // Rows of k are `stride` floats apart.
  KeyGroup(const float* k, std::int64_t stride, std::int64_t size)
      : scales(static_cast<std::size_t>(size)),
        minimums(static_cast<std::size_t>(size)),
        codes(static_cast<std::size_t>(kOpenTokens * size)) {
    for (std::int64_t d = 0; d < size; ++d) {
      const auto at = static_cast<std::size_t>(d);
      float least = rounded_bf16(k[d]), greatest = least;
      for (std::int64_t t = 1; t < kOpenTokens; ++t) {
        least = std::min(least, rounded_bf16(k[t * stride + d]));
        greatest = std::max(greatest, rounded_bf16(k[t * stride + d]));
      }
      const float scale = rounded_up_to_bf16((greatest - least) / 15.0f);
      scales[at] = scale;
      minimums[at] = least;
      for (std::int64_t t = 0; t < kOpenTokens; ++t) {
        const float steps = (rounded_bf16(k[t * stride + d]) - least) * (1.0f / scale);
        codes[static_cast<std::size_t>(t * size + d)] = std::nearbyint(steps);
      }
    }
  }
};

// As they are stored: rotated, if they are.
Stored stored_key(KVFormat format, const float* k, std::int64_t size) {
  if (has_codes(format)) return rotated_codes(k, size, 8);
  return in_floats(format, k, size);
}

Stored stored_value(KVFormat format, const float* v, std::int64_t size) {
  if (has_rotated_values(format)) return rotated_codes(v, size, 4);
  if (has_codes(format)) return quantized(v, size, size, 8);
  return in_floats(format, v, size);
}

// A query as it meets the stored keys.
std::vector<double> rounded_query(KVFormat format, const float* q, std::int64_t size) {
  if (has_codes(format)) return quantized_query(q, size);
  return in_floats(format, q, size).numbers;
}

// K and V of a sequence as a cache holds them.
struct StoredSequence {
  std::vector<Stored> k, v;          // [length, kv-heads]
  std::vector<KeyGroup> key_groups;  // [length / 32, kv-heads], of formats with open keys

  StoredSequence(const Model& model, const Sequence& sequence) {
    const std::int64_t num_groups = has_open_keys(model.format) ? sequence.length / kOpenTokens : 0;
    for (std::int64_t i = 0; i < num_groups * model.num_kv_heads; ++i) {
      const std::int64_t position = i / model.num_kv_heads * kOpenTokens;
      const std::int64_t head = i % model.num_kv_heads;
      key_groups.emplace_back(
          sequence.k.data() + position * model.kv_size() + head * model.head_dim, model.kv_size(),
          model.head_dim);
    }
    for (std::int64_t at = 0; at < sequence.length * model.kv_size(); at += model.head_dim) {
      k.push_back(stored_key(model.format, sequence.k.data() + at, model.head_dim));
      v.push_back(stored_value(model.format, sequence.v.data() + at, model.head_dim));
    }
  }
};

// A score times log2(e), or before the cap, and the sum of the magnitudes of its products.
struct Product {
  double sum = 0, size = 0;

  void add(double x) {
    sum += x;
    size += std::abs(x);
  }
};

// Of a query with the keys [begin, position] of its sequence, where keys have codes by dimension.
std::vector<Product> products_by_dimension(const Model& model, const Sequence& sequence,
                                           const StoredSequence& stored, const float* q_row,
                                           float scale, std::int64_t begin, std::int64_t first_key,
                                           std::int64_t position, std::int64_t kv_head) {
  const std::int64_t own = position / kOpenTokens;
  std::vector<float> q(q_row, q_row + model.head_dim);
  for (float& x : q) x *= scale;
  const auto group_at = [&](std::int64_t group) -> const KeyGroup& {
    return stored.key_groups[static_cast<std::size_t>(group * model.num_kv_heads + kv_head)];
  };
  std::vector<Product> products;
  for (std::int64_t p = begin; p <= position; ++p) {
    Product product;
    const std::int64_t group = p / kOpenTokens, range = p / kRangeTokens * kRangeTokens;
    const float* const k = sequence.k.data() + p * model.kv_size() + kv_head * model.head_dim;
    for (std::int64_t first = 0; first < model.head_dim; first += kKVGroupDims) {
      const std::int64_t end = std::min<std::int64_t>(first + kKVGroupDims, model.head_dim);
      float peak = 0;
      for (std::int64_t d = first; d < end && group < own; ++d) {
        const auto at = static_cast<std::size_t>(d);
        for (std::int64_t g = std::max(range, first_key) / kOpenTokens;
             g < std::min(own, (range + kRangeTokens) / kOpenTokens); ++g) {
          peak = std::max(peak, std::abs(q[at] * group_at(g).scales[at]));
        }
      }
      for (std::int64_t d = first; d < end; ++d) {
        const auto at = static_cast<std::size_t>(d);
        if (group == own) {
          product.add(rounded_to_bf16(q[at]) * rounded_to_bf16(k[d]));
          continue;
        }
        const KeyGroup& keys = group_at(group);
        const float code = std::nearbyint(q[at] * (127.0f / peak) * keys.scales[at]);
        const auto key_at = static_cast<std::size_t>(p % kOpenTokens * model.head_dim + d);
        product.add(double{peak / 127.0f} * double{code} * double{keys.codes[key_at]});
        product.add(double{q[at]} * double{keys.minimums[at]});
      }
    }
    products.push_back(product);
  }
  return products;
}

// y [D] of one row and head by the definition, and how far each number may be off.
struct Expected {
  std::vector<double> y, tolerance;
};

Expected define(const Model& model, const Sequence& sequence, const StoredSequence& stored,
                std::int64_t position, std::int64_t head) {
  const std::int64_t kv_head = head / (model.num_heads / model.num_kv_heads);
  const std::int64_t begin =
      model.sliding_window > 0 ? std::max<std::int64_t>(0, position - model.sliding_window + 1) : 0;
  const auto at = [&](std::int64_t p) {
    return static_cast<std::size_t>(p * model.num_kv_heads + kv_head);
  };
  const float* const q_row = sequence.q.data() + position * model.q_size() + head * model.head_dim;
  const std::vector<double> q = rounded_query(model.format, q_row, model.head_dim);

  const std::int64_t tile_begin = position / kTileTokens * kTileTokens;
  const std::int64_t key_unit = has_open_keys(model.format) ? kOpenTokens : kTileTokens;
  const std::int64_t first_key =
      model.sliding_window > 0
          ? std::max<std::int64_t>(0, tile_begin - model.sliding_window + 1) / key_unit * key_unit
          : 0;
  std::vector<Product> products;
  double unit = double{model.scale()};
  if (has_open_keys(model.format)) {
    const float scale =
        model.softcap > 0 ? model.scale() / model.softcap : model.scale() * 1.44269504f;
    products = products_by_dimension(model, sequence, stored, q_row, scale, begin, first_key,
                                     position, kv_head);
    unit = model.softcap > 0 ? double{model.softcap} : 1 / 1.44269504088896341;
  } else {
    for (std::int64_t p = begin; p <= position; ++p) {
      const std::vector<double>& k = stored.k[at(p)].numbers;
      Product product;
      for (std::size_t d = 0; d < q.size(); ++d) product.add(q[d] * k[d]);
      products.push_back(product);
    }
  }
  std::vector<double> scores;
  double score_error = 0;  // absolute, the largest
  for (const Product& product : products) {
    double score = product.sum * unit;
    // Sums of D products; the scaling; the argument of the exponential.
    double error = (static_cast<double>(q.size()) + 4) * kUnitRoundoff * product.size * unit;
    if (model.softcap > 0) {
      const double cap = double{model.softcap};
      score = cap * std::tanh(score / cap);
      error += 8 * kUnitRoundoff * cap;
    }
    error += 4 * kUnitRoundoff * std::abs(score);
    scores.push_back(score);
    score_error = std::max(score_error, error);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  const std::size_t num_dims = stored.v[at(position)].numbers.size();
  std::vector<double> sums(num_dims), sizes(num_dims);
  // Rounding probabilities to codes: half a step for each value. Sixteen share a step: the same
  // four of the 16 tokens of each of four tiles.
  const auto share_of = [&](std::int64_t p) {
    const std::int64_t range_begin = std::max(p / kRangeTokens * kRangeTokens, first_key);
    return static_cast<std::size_t>(p / kRangeTokens * 16 + (p - range_begin) / 64 * 4 +
                                    p % kTileTokens / 4);
  };
  struct CodeShare {
    double max = 0, size = 0;
  };
  std::vector<std::vector<CodeShare>> shares(
      num_dims, std::vector<CodeShare>(static_cast<std::size_t>(position / kRangeTokens + 1) * 16));
  for (std::int64_t p = begin; p <= position; ++p) {
    const Stored& v = stored.v[at(p)];
    const double probability = std::exp(scores[static_cast<std::size_t>(p - begin)] - max);
    total += probability;
    for (std::size_t d = 0; d < num_dims; ++d) {
      sums[d] += probability * v.numbers[d];
      sizes[d] += std::abs(probability * v.numbers[d]);
      if (v.scales[d] == 0) continue;
      CodeShare& share = shares[d][share_of(p)];
      share.max = std::max(share.max, probability * v.scales[d]);
      share.size += std::abs(v.numbers[d] / v.scales[d]);
    }
  }
  // Errors of probabilities, relative: of their scores, above and below the fraction line; of the
  // exponential; of sums over at most a range, and of folding ranges.
  double relative = 2 * score_error + (2 * 8 + 2 * kRangeTokens + 64) * kUnitRoundoff;
  if (model.format == KVFormat::kBF16) relative += kBF16Roundoff;
  Expected expected;
  for (std::size_t d = 0; d < num_dims; ++d) {
    double code_error = 0;
    for (const CodeShare& share : shares[d]) code_error += 0.501 * share.max / 127 * share.size;
    expected.y.push_back(sums[d] / total);
    expected.tolerance.push_back((relative * sizes[d] + code_error) / total + 1e-30);
  }
  if (has_rotated_values(model.format)) {
    // Back: a number is off by no more than all of its group together, and by five additions.
    expected.y = rotated(expected.y.data(), static_cast<std::int64_t>(num_dims), 0.25);
    for (std::size_t first = 0; first < num_dims; first += kKVGroupDims) {
      double sum = 0;
      for (std::size_t d = first; d < first + kKVGroupDims; ++d) {
        sum += 0.25 * (expected.tolerance[d] + 5 * kUnitRoundoff * sizes[d] / total);
      }
      std::fill_n(expected.tolerance.begin() + static_cast<std::ptrdiff_t>(first), kKVGroupDims,
                  sum);
    }
  }
  return expected;
}

std::string describe(const KernelTable& kernels, const Model& model) {
  return std::string(kernels.isa) + " " + kv_format_name(model.format) +
         " H=" + std::to_string(model.num_heads) + " K=" + std::to_string(model.num_kv_heads) +
         " D=" + std::to_string(model.head_dim) +
         " window=" + std::to_string(model.sliding_window) +
         " softcap=" + std::to_string(model.softcap);
}

void check(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

// What is expected of a head at a position of a sequence.
struct Check {
  std::int64_t row, position, head;
  Expected expected;
};

// All rows of the first and last tiles (with few rows: three of each), some of the others.
std::vector<Check> checks_of(const Model& model, const std::vector<Share>& shares) {
  std::vector<Check> checks;
  std::int64_t row = 0;
  for (const Share& share : shares) {
    const StoredSequence stored(model, *share.sequence);
    for (std::int64_t p = share.begin; p < share.end; ++p, ++row) {
      const std::int64_t edge = kFewRows ? 3 : 17;
      if (p - share.begin >= edge && share.end - p > edge && p % 13 != 0) continue;
      for (std::int64_t head = p % 2; head < model.num_heads; head += 2) {
        checks.push_back({row, p, head, define(model, *share.sequence, stored, p, head)});
      }
    }
  }
  return checks;
}

// Three requests at different depths in one step, as prefill, chunk and decode. Returns the
// greatest error as a share of what is allowed.
double check_definition(const Model& model, std::int64_t block_size, int num_threads) {
  const Sequence prompt(model, 75, 1), chunk(model, 290, 2), decode(model, 600, 3);
  const std::vector<Share> shares = {{&prompt, 0, 75}, {&decode, 599, 600}, {&chunk, 250, 290}};
  const std::vector<Check> checks = checks_of(model, shares);
  double worst = 0;
  for (const KernelTable* kernels : supported_kernel_tables()) {
    Engine engine(*kernels, model, block_size, num_threads, 7);
    engine.fill({{&chunk, 0, 250}, {&decode, 0, 599}});
    const std::vector<float> y = engine.step(shares);
    for (const Check& c : checks) {
      for (std::int64_t d = 0; d < model.head_dim; ++d) {
        const auto at = static_cast<std::size_t>(d);
        const float got =
            y[static_cast<std::size_t>(c.row * model.q_size() + c.head * model.head_dim + d)];
        const double error = std::abs(double{got} - c.expected.y[at]);
        if (!(error <=
              c.expected.tolerance[at])) {  // a message for each number is a tenth of the time
          check(false, describe(*kernels, model) + " position " + std::to_string(c.position) +
                           " head " + std::to_string(c.head) + " dim " + std::to_string(d) + ": " +
                           std::to_string(got) + " for " + std::to_string(c.expected.y[at]) +
                           " +- " + std::to_string(c.expected.tolerance[at]));
        }
        worst = std::max(worst, error / c.expected.tolerance[at]);
      }
    }
  }
  return worst;
}

bool same_bits(const float* a, const float* b, std::size_t size) {
  return std::memcmp(a, b, size * sizeof(float)) == 0;
}

// One request's rows, however it is cut into steps and whatever runs beside it.
void check_invariance(const KernelTable& kernels, const Model& model) {
  constexpr std::int64_t kLength = 293;  // into the second range, and no multiple of anything
  const Sequence sequence(model, kLength, 4), other(model, 330, 5);
  const std::vector<float> whole = Engine(kernels, model, 32, 1, 1).step({{&sequence, 0, kLength}});
  const auto compare = [&](const std::vector<float>& rows, std::int64_t begin,
                           const std::string& what) {
    check(same_bits(rows.data(), whole.data() + begin * model.q_size(), rows.size()),
          describe(kernels, model) + ": bits differ " + what + " at position " +
              std::to_string(begin));
  };

  Engine one_by_one(kernels, model, 16, 2, 2);
  for (std::int64_t p = 0; p < kLength; ++p) {
    if (kFewRows && p % 16 != 0 && p < kRangeTokens - 1) {
      one_by_one.fill({{&sequence, p, p + 1}});
      continue;
    }
    compare(one_by_one.step({{&sequence, p, p + 1}}), p, "one by one");
  }

  for (const std::int64_t block_size : {16, 32, 64, 128}) {
    std::mt19937 random(static_cast<unsigned>(block_size));
    Engine engine(kernels, model, block_size, 1 + static_cast<int>(random() % 5), 3);
    std::int64_t others = 0;
    for (std::int64_t p = 0; p < kLength;) {
      const std::int64_t end =
          std::min<std::int64_t>(kLength, p + 1 + static_cast<std::int64_t>(random() % 90));
      const std::int64_t others_end = std::min<std::int64_t>(
          other.length, others + 1 + static_cast<std::int64_t>(random() % 200));
      std::vector<float> rows;
      if (others < others_end) {  // in front, so that rows move
        rows = engine.step({{&other, others, others_end}, {&sequence, p, end}});
        rows.erase(rows.begin(), rows.begin() + (others_end - others) * model.q_size());
      } else {
        rows = engine.step({{&sequence, p, end}});
      }
      compare(rows, p, "in chunks of block size " + std::to_string(block_size));
      p = end;
      others = others_end;
    }
  }

  // A long decode is split over threads, and folded to the same bits.
  Engine alone(kernels, model, 32, 1, 4), split(kernels, model, 64, 6, 5);
  const Sequence deep(model, 700, 6);
  alone.fill({{&deep, 0, 680}});
  const std::vector<float> expected = alone.step({{&deep, 680, 700}});
  split.fill({{&deep, 0, 699}});
  const std::vector<float> last = split.step({{&deep, 699, 700}});
  check(same_bits(last.data(), expected.data() + 19 * model.q_size(), last.size()),
        describe(kernels, model) + ": bits differ when split over threads");
  CHECK(model.sliding_window > 0 || split.num_splits_seen() > 0);
  CHECK(alone.num_splits_seen() == 0);
}

// What is not finite is seen by those who see it, in the same step and tile, and by no one else.
void check_not_finite(const KernelTable& kernels, const Model& model) {
  constexpr std::int64_t kLength = 40, kBroken = 21;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // A key of minus infinity is one that is not seen, so not that.
  for (const auto& [broken, is_value] : {std::pair{kNaN, true}, {kInfinity, true}, {kNaN, false}}) {
    Sequence sequence(model, kLength, 8);
    (is_value ? sequence.v : sequence.k)[kBroken * model.kv_size()] = broken;
    const Sequence other(model, kLength, 9);
    const std::vector<float> y =
        Engine(kernels, model, 16, 2, 1).step({{&other, 0, kLength}, {&sequence, 0, kLength}});
    for (std::int64_t row = 0; row < 2 * kLength; ++row) {
      const bool is_finite = std::isfinite(y[static_cast<std::size_t>(row * model.q_size())]);
      check(is_finite == (row < kLength + kBroken),
            describe(kernels, model) + ": row " + std::to_string(row) +
                (is_finite ? " hides" : " sees") + " what is not finite");
    }
  }
}

void check_format(KVFormat format) {
  const Model models[] = {
      {format, 2, 2, 64},          {format, 4, 2, 16},
      {format, 3, 1, 24},          {format, 8, 2, 40, 0, 20.0f},
      {format, 14, 2, 64, 70},     {format, 6, 1, 80, 0, 0, 8.0f},
      {format, 8, 1, 256, 300, 5}, {format, 7, 1, 128, 16, 0, 3},
      {format, 16, 2, 8, 1},
  };
  const std::int64_t block_sizes[] = {16, 32, 64, 128};
  double worst = 0;
  int i = 0;
  for (const Model& model : models) {
    worst = std::max(worst, check_definition(model, block_sizes[i % 4], 1 + i % 3));
    ++i;
  }
  for (const KernelTable* kernels : supported_kernel_tables()) {
    check_invariance(*kernels, {format, 7, 1, 64});
    check_invariance(*kernels, {format, 2, 2, 24, 37, 30.0f, 4});
    check_not_finite(*kernels, {format, 2, 1, 16});
  }
  std::printf("%s: errors up to %.2f of what is allowed\n", kv_format_name(format), worst);
}

}  // namespace

int main() {
  for (int format = 0; format < kNumKVFormats; ++format) {
    check_format(static_cast<KVFormat>(format));
  }
  std::printf("ok\n");
}
