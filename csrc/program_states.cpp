// Adds recurrent layers to a program: convolutions over time, and the gated delta rule.
#include "program_states.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "require.h"
#include "rounding.h"

namespace pellucid {
namespace {

constexpr std::int64_t kChannelsPerItem = 256;  // of a convolution
// Of a head's matrix: 128 rows of so many columns stay in the first-level cache from token to
// token.
constexpr std::int64_t kColumnsPerItem = 32;
// From so many tokens on, the columns of an item are copied: in the state their rows are a power of
// two apart, so that they share a few sets of the first-level cache.
constexpr std::int64_t kMinCopiedTokens = 4;
constexpr float kUnitEpsilon = 1e-6f;

void check_states(const Step& step, std::int64_t first, std::int64_t num_numbers) {
  require(step.states != nullptr, "states: the program has recurrent layers and needs them");
  require(first + num_numbers <= step.state_width, "states: a slot has ", step.state_width,
          " numbers, the program uses ", first + num_numbers);
}

void copy_state(const StateRows& from, std::int64_t num_rows, std::int64_t num_columns,
                const StateRows& to) {
  for (std::int64_t i = 0; i < num_rows; ++i) {
    std::copy_n(from.data + i * from.stride, num_columns, to.data + i * to.stride);
  }
}

// The rows of one request, and its state from number `first` on.
struct RequestRows {
  std::int64_t begin;
  std::int64_t end;
  float* state;
  bool begins_text;
};

RequestRows rows_of(const Step& step, std::int64_t request, std::int64_t first) {
  const std::int64_t begin = step.query_start[request];
  return {begin, step.query_start[request + 1],
          step.states + step.state_slots[request] * step.state_width + first,
          step.positions[begin] == 0};
}

}  // namespace

void add_causal_convolution(Program& program, View x, Floats weight, Floats bias,
                            std::int64_t num_channels, std::int64_t first, View y) {
  require(num_channels >= 1 && weight->size() % static_cast<std::size_t>(num_channels) == 0,
          "weight: has ", weight->size(), " numbers, which are no rows of ", num_channels);
  const auto kernel_size = static_cast<std::int64_t>(weight->size()) / num_channels;
  require(kernel_size >= 1, "weight: is empty");
  require(bias == nullptr || static_cast<std::int64_t>(bias->size()) == num_channels,
          "bias: must have ", num_channels, " numbers");
  require(first >= 0, "first=", first, ": must be 0 or more");
  require(x.buffer != y.buffer, "y: must be another buffer than x");
  program.check_view("x", x, RowSet::kTokens, num_channels);
  program.check_view("y", y, RowSet::kTokens, num_channels);
  program.add_preparation(
      [=](const Step& step) { check_states(step, first, (kernel_size - 1) * num_channels); });
  const std::int64_t num_parts = ceil_div(num_channels, kChannelsPerItem);
  program.add_phase(
      "convolution", {x.buffer, y.buffer},
      [=](const Step& step) { return step.num_requests * num_parts; },
      [](const Step&) { return 1; },
      [=, &program](const Step& step, const Share& share) {
        for (std::int64_t item = share.begin; item < share.end; ++item) {
          const std::int64_t begin = item % num_parts * kChannelsPerItem;
          const std::int64_t count = std::min(kChannelsPerItem, num_channels - begin);
          const RequestRows rows = rows_of(step, item / num_parts, first);
          const StateRows state{rows.state + begin, num_channels};
          if (rows.begins_text) {
            for (std::int64_t t = 0; t < kernel_size - 1; ++t) {
              std::fill_n(state.data + t * state.stride, count, 0.0f);
            }
          }
          program.kernels().recurrence.convolve(
              {program.row(x, rows.begin) + begin, program.stride(x)}, rows.end - rows.begin,
              {weight->data() + begin, num_channels}, bias ? bias->data() + begin : nullptr,
              kernel_size, count, state, {program.row(y, rows.begin) + begin, program.stride(y)});
        }
      });
}

void add_gated_delta_net(Program& program, View qkv, View b, View a, Floats log_decay,
                         Floats step_bias, const DeltaHeads& heads, std::int64_t first, View y) {
  const std::int64_t num_heads = heads.num_value_heads, key_dim = heads.key_dim;
  require(heads.num_key_heads >= 1 && num_heads >= 1 && num_heads % heads.num_key_heads == 0,
          "num_value_heads=", num_heads,
          ": must be a multiple of num_key_heads=", heads.num_key_heads);
  require(key_dim >= 1 && heads.value_dim >= 1 && heads.value_dim % kDeltaColumns == 0,
          "key_dim=", key_dim, ", value_dim=", heads.value_dim,
          ": must be at least 1, and a multiple of ", kDeltaColumns);
  require(static_cast<std::int64_t>(log_decay->size()) == num_heads &&
              static_cast<std::int64_t>(step_bias->size()) == num_heads,
          "log_decay, step_bias: must have ", num_heads, " numbers");
  require(first >= 0, "first=", first, ": must be 0 or more");
  const std::int64_t keys = heads.num_key_heads * key_dim;
  const std::int64_t values = num_heads * heads.value_dim;
  program.check_view("qkv", qkv, RowSet::kTokens, 2 * keys + values);
  program.check_view("b", b, RowSet::kTokens, num_heads);
  program.check_view("a", a, RowSet::kTokens, num_heads);
  program.check_view("y", y, RowSet::kTokens, values);
  program.add_preparation(
      [=](const Step& step) { check_states(step, first, num_heads * key_dim * heads.value_dim); });

  // q and k of unit length, then beta and decay of each head.
  const View units{program.add_buffer(RowSet::kTokens, 2 * keys)};
  const View factors{program.add_buffer(RowSet::kTokens, 2 * num_heads)};
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
  program.add_row_phase(
      "delta_inputs", RowSet::kTokens,
      {qkv.buffer, b.buffer, a.buffer, units.buffer, factors.buffer},
      [=, &program](const Step&, std::int64_t r) {
        const float* const from = program.row(qkv, r);
        float* const to = program.row(units, r);
        for (std::int64_t head = 0; head < 2 * heads.num_key_heads; ++head) {
          const float* const x = from + head * key_dim;
          const float length =
              std::sqrt(program.kernels().elementwise.square_sum(x, key_dim) + kUnitEpsilon);
          const float factor = (head < heads.num_key_heads ? query_scale : 1.0f) / length;
          program.kernels().elementwise.scale(x, factor, key_dim, to + head * key_dim);
        }
        const float* const beta = program.row(b, r);
        const float* const alpha = program.row(a, r);
        float* const factor = program.row(factors, r);
        for (std::int64_t h = 0; h < num_heads; ++h) {
          const auto i = static_cast<std::size_t>(h);
          const float step = alpha[h] + (*step_bias)[i];
          const float softplus = std::max(step, 0.0f) + std::log1p(std::exp(-std::fabs(step)));
          factor[h] = 1.0f / (1.0f + std::exp(-beta[h]));
          factor[num_heads + h] = std::exp((*log_decay)[i] * softplus);
        }
      });
  const std::int64_t num_parts = ceil_div(heads.value_dim, kColumnsPerItem);
  const std::int64_t item_numbers = key_dim * kColumnsPerItem;
  const int copies = program.add_scratch(static_cast<std::size_t>(item_numbers) * sizeof(float) *
                                         static_cast<std::size_t>(program.max_threads()));
  program.add_phase(
      "gated_delta", {qkv.buffer, units.buffer, factors.buffer, y.buffer, copies},
      [=](const Step& step) { return step.num_requests * num_heads * num_parts; },
      [](const Step&) { return 1; },
      [=, &program](const Step& step, const Share& share) {
        float* const copy =
            reinterpret_cast<float*>(program.scratch(copies)) + share.thread * item_numbers;
        for (std::int64_t item = share.begin; item < share.end; ++item) {
          const std::int64_t column = item % num_parts * kColumnsPerItem;
          const std::int64_t head = item / num_parts % num_heads;
          const std::int64_t count = std::min(kColumnsPerItem, heads.value_dim - column);
          const std::int64_t times = num_heads / heads.num_key_heads;
          const std::int64_t key_head = heads.tiled ? head % heads.num_key_heads : head / times;
          const RequestRows rows = rows_of(step, item / (num_parts * num_heads), first);
          const StateRows kept{rows.state + head * key_dim * heads.value_dim + column,
                               heads.value_dim};
          const bool is_copied = rows.end - rows.begin >= kMinCopiedTokens;
          const StateRows state = is_copied ? StateRows{copy, count} : kept;
          if (rows.begins_text) {
            for (std::int64_t i = 0; i < key_dim; ++i) {
              std::fill_n(state.data + i * state.stride, count, 0.0f);
            }
          } else if (is_copied) {
            copy_state(kept, key_dim, count, state);
          }
          for (std::int64_t r = rows.begin; r < rows.end; ++r) {
            const float* const q = program.row(units, r) + key_head * key_dim;
            const float* const factor = program.row(factors, r);
            const std::int64_t place = head * heads.value_dim + column;
            const DeltaToken token{q, q + keys, program.row(qkv, r) + 2 * keys + place,
                                   factor[num_heads + head], factor[head]};
            program.kernels().recurrence.delta(state, key_dim, count, token,
                                               program.row(y, r) + place);
          }
          if (is_copied) copy_state(state, key_dim, count, kept);
        }
      });
}

}  // namespace pellucid
