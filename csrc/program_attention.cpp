// Adds attention to a program: the phase that stores K and V, and the phase that computes
// attention.
#include "program_attention.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "memory_units.h"
#include "require.h"
#include "rounding.h"

namespace pellucid {
namespace {

constexpr std::int64_t kMaxHeads = 1 << 16;  // no product of sizes leaves 64 bits

void check_place(KVPlace place) {
  require(place.layer >= 0, "layer=", place.layer, ": must be 0 or more");
  require(place.group >= 0, "group=", place.group, ": must be 0 or more");
}

void check_layer(const Step& step, KVPlace place, std::int64_t num_kv_heads,
                 std::int64_t head_dim) {
  require(step.kv_cache != nullptr, "kv_cache: the program has attention and needs one");
  const KVShape& shape = step.kv_cache->shape();
  require(place.group < shape.num_groups(), "kv_cache: has ", shape.num_groups(),
          " groups, the program uses ", place.group + 1);
  const KVGroup& group = shape.group(place.group);
  require(place.layer < group.num_layers, "kv_cache: has ", group.num_layers,
          " layers, the program uses ", place.layer + 1);
  require(num_kv_heads == group.num_kv_heads, "kv_cache: has ", group.num_kv_heads,
          " kv-heads, the program ", num_kv_heads);
  require(head_dim == group.head_dim, "kv_cache: head_dim=", group.head_dim, ", the program has ",
          head_dim);
  require(step.open_groups != nullptr || !has_open_keys(shape.format),
          "state_slots: the cache's format needs them");
}

void check_limits(const AttentionLimits& limits) {
  constexpr std::int64_t kMaxSeqLen = std::numeric_limits<std::int32_t>::max();
  require(limits.max_requests >= 1, "max_requests=", limits.max_requests, ": must be at least 1");
  require(limits.max_seq_len >= 1 && limits.max_seq_len <= kMaxSeqLen,
          "max_seq_len=", limits.max_seq_len, ": allowed are 1 to ", kMaxSeqLen);
  require(limits.num_kv_heads >= 1 && limits.num_heads >= limits.num_kv_heads &&
              limits.num_heads <= kMaxHeads && limits.num_heads % limits.num_kv_heads == 0,
          "num_heads=", limits.num_heads,
          ": must be a multiple of num_kv_heads=", limits.num_kv_heads, ", at most ", kMaxHeads);
  require(limits.head_dim >= 8 && limits.head_dim % 8 == 0 && limits.head_dim <= kMaxHeadDim,
          "head_dim=", limits.head_dim, ": allowed are multiples of 8, at most ", kMaxHeadDim);
}

// Checks a step against the limits that the plans are made for.
void check_requests(const Step& step, const AttentionLimits& limits) {
  require(step.num_requests <= limits.max_requests, "seq_lens: has ", step.num_requests,
          " requests, the program was made for ", limits.max_requests);
  for (std::int64_t b = 0; b < step.num_requests; ++b) {
    require(step.seq_lens[b] <= limits.max_seq_len, "seq_lens: ", step.seq_lens[b],
            " tokens, the program was made for ", limits.max_seq_len);
  }
}

}  // namespace

ProgramAttention::ProgramAttention(Program& program, const AttentionLimits& limits)
    : program_(program), limits_(limits), single_rows_(std::make_shared<SingleRows>()) {
  check_limits(limits);
  const auto max_rows = static_cast<std::size_t>(limits.max_requests);
  single_rows_->query_start.reserve(max_rows + 1);  // plans keep the addresses
  single_rows_->seq_lens.reserve(max_rows);
  single_rows_->requests.reserve(max_rows);
}

void ProgramAttention::SingleRows::make(const Step& step) {
  query_start.assign(1, 0);
  seq_lens.clear();
  requests.clear();
  const std::int32_t* const end = step.query_start + step.num_requests + 1;
  for (std::int64_t r = 0; r < step.num_logits; ++r) {
    const std::int32_t row = step.logits_indices[r];
    require(row >= 0 && row < step.num_tokens, "logits_indices: there is no row ", row);
    const std::int64_t request =
        std::upper_bound(step.query_start, end, row) - step.query_start - 1;
    const std::int32_t num_later = step.query_start[request + 1] - row - 1;
    query_start.push_back(static_cast<std::int32_t>(r + 1));
    seq_lens.push_back(step.seq_lens[request] - num_later);
    requests.push_back(static_cast<std::int32_t>(request));
  }
}

const std::shared_ptr<AttentionPlan>& ProgramAttention::plan_of(RowSet rows,
                                                                std::int64_t sliding_window) {
  std::shared_ptr<AttentionPlan>& plan = plans_[{rows, sliding_window}];
  if (plan != nullptr) return plan;
  plan = std::make_shared<AttentionPlan>(limits_);
  program_.add_own_bytes(plan->num_bytes());
  program_.add_preparation(
      [=, plan = plan, limits = limits_, single_rows = single_rows_](const Step& step) {
        check_requests(step, limits);
        if (rows == RowSet::kTokens) {
          plan->make({step.num_requests, step.query_start, step.seq_lens}, sliding_window);
          return;
        }
        require(step.num_logits <= limits.max_requests, "logits_indices: has ", step.num_logits,
                " rows, the program was made for ", limits.max_requests);
        single_rows->make(step);
        plan->make({step.num_logits, single_rows->query_start.data(), single_rows->seq_lens.data()},
                   sliding_window);
      });
  return plan;
}

void add_store_kv(Program& program, KVPlace place, View k, View v, std::int64_t num_kv_heads,
                  std::int64_t head_dim) {
  check_place(place);
  require(num_kv_heads >= 1 && num_kv_heads <= kMaxHeads, "num_kv_heads=", num_kv_heads,
          ": allowed are 1 to ", kMaxHeads);
  require(head_dim >= 1 && head_dim <= kMaxHeadDim, "head_dim=", head_dim, ": allowed are 1 to ",
          kMaxHeadDim);
  program.check_view("k", k, RowSet::kTokens, num_kv_heads * head_dim);
  program.check_view("v", v, RowSet::kTokens, num_kv_heads * head_dim);
  program.add_preparation(
      [=](const Step& step) { check_layer(step, place, num_kv_heads, head_dim); });
  program.add_phase(
      "store_kv", {k.buffer, v.buffer},
      [=](const Step& step) { return step.num_tokens > 0 ? num_kv_heads : 0; },
      [](const Step&) { return 1; },
      [=, &program](const Step& step, const Share& share) {
        const KVFormat format = step.kv_cache->shape().format;
        const KVView layer = step.kv_cache->layer(place);
        const std::int64_t* const slots = step.slots(place.group);
        // One token at a time: k and v may be in buffers of different widths.
        std::int64_t request = 0;
        for (std::int64_t t = 0; t < step.num_tokens; ++t) {
          KVRows row{program.row(k, t), program.row(v, t), 0, slots + t};
          if (step.open_groups != nullptr) {
            while (t >= step.query_start[request + 1]) ++request;
            row.open_groups = step.open_groups + request;
            row.first_position = row.open_groups->first_position + t - step.query_start[request];
          }
          store_kv(program.kernels(), format, layer, row, 1, share.begin, share.end);
        }
      });
}

void ProgramAttention::add_attention(RowSet rows, KVPlace place, View q, AttentionOptions options,
                                     View y, std::shared_ptr<const std::vector<float>> sinks) {
  check_place(place);
  require(options.sliding_window >= 0, "sliding_window=", options.sliding_window,
          ": must be positive");
  program_.check_view("q", q, rows, limits_.num_heads * limits_.head_dim);
  program_.check_view("y", y, rows, limits_.num_heads * limits_.head_dim);
  program_.add_preparation(
      [place, limits = limits_, window = options.sliding_window](const Step& step) {
        check_layer(step, place, limits.num_kv_heads, limits.head_dim);
        // Blocks that have left the window of a group may belong to other requests.
        const std::int64_t kept = step.kv_cache->shape().group(place.group).window;
        require(kept == 0 || (window > 0 && window <= kept), "sliding_window=", window, ": group ",
                place.group, " of the cache keeps ", kept, " keys");
      });
  require(sinks == nullptr || static_cast<std::int64_t>(sinks->size()) == limits_.num_heads,
          "sinks: must have one number for each head");
  if (sinks != nullptr)
    options.sinks = sinks->data();  // alive as long as the phase's copy of sinks
  const std::shared_ptr<AttentionPlan> plan = plan_of(rows, options.sliding_window);
  const std::size_t bytes_per_thread = round_up(attention_scratch_bytes(limits_), kCacheLine);
  const auto num_threads = static_cast<std::size_t>(program_.max_threads());
  const int scratch = program_.add_scratch(num_threads * bytes_per_thread);
  program_.add_phase(
      "attention", {q.buffer, y.buffer, scratch},
      [plan](const Step&) { return static_cast<std::int64_t>(plan->items().size()); },
      [](const Step&) { return 1; },
      [=, sinks = std::move(sinks), single_rows = single_rows_, &program = program_](
          const Step& step, const Share& share) {
        const AttentionArrays arrays{
            program.row(q, 0),
            program.stride(q),
            program.row(y, 0),
            program.stride(y),
            step.tables(place.group),
            step.max_blocks,
            rows == RowSet::kTokens ? nullptr : single_rows->requests.data(),
            step.open_groups};
        run_attention(
            program.kernels(), step.kv_cache->shape().format, step.kv_cache->layer(place), *plan,
            options, arrays, share.begin, share.end,
            program.scratch(scratch) + static_cast<std::size_t>(share.thread) * bytes_per_thread);
      });
}

}  // namespace pellucid
