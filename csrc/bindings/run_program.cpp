// Checks the arrays of a step and runs a program over them.
#include "bindings/run_program.h"

#include <nanobind/nanobind.h>

#include <cstddef>

#include "open_groups.h"

namespace pellucid {
namespace {

std::vector<ConstRows> const_rows(const std::vector<FloatMatrix>& arrays) {
  std::vector<ConstRows> rows;
  for (const FloatMatrix& array : arrays) {
    rows.push_back({array.data(), static_cast<std::int64_t>(array.shape(0)),
                    static_cast<std::int64_t>(array.shape(1))});
  }
  return rows;
}

// Checks every index that kernels use without a check of their own: a wrong one would make them
// read or write out of bounds.
void check_cache_arrays(const Step& step, const KVCache& cache) {
  const std::int64_t block_size = cache.shape().block_size;
  const std::int64_t num_slots = cache.num_blocks() * block_size;
  require(step.num_groups == cache.shape().num_groups(), "slot_mapping: has ", step.num_groups,
          " groups, the cache ", cache.shape().num_groups());
  for (std::int64_t t = 0; t < step.num_groups * step.num_tokens; ++t) {
    require(step.slot_mapping[t] >= 0 && step.slot_mapping[t] < num_slots,
            "slot_mapping: ", step.slot_mapping[t], " is not in the cache");
  }
  if (step.num_requests == 0) return;
  require(step.query_start[0] == 0 && step.query_start[step.num_requests] == step.num_tokens,
          "query_start: must go from 0 to the number of tokens");
  for (std::int64_t b = 0; b < step.num_requests; ++b) {
    const std::int64_t q_len = step.query_start[b + 1] - step.query_start[b];
    const std::int64_t num_blocks = (step.seq_lens[b] + block_size - 1) / block_size;
    require(q_len >= 1 && q_len <= step.seq_lens[b] && num_blocks <= step.max_blocks,
            "seq_lens: do not fit query_start and block_tables");
    for (std::int64_t group = 0; group < step.num_groups; ++group) {
      const std::int64_t window = cache.shape().group(group).window;
      const std::int64_t first = first_seen(step.seq_lens[b] - q_len, window) / block_size;
      const std::int32_t* const table = step.tables(group) + b * step.max_blocks;
      for (std::int64_t i = first; i < num_blocks; ++i) {
        require(table[i] >= 0 && table[i] < cache.num_blocks(), "block_tables: ", table[i],
                " is not in the cache");
      }
    }
  }
}

// Checks the positions and slots of open keys, as check_cache_arrays() does the blocks.
void check_open_keys(const Step& step, const KVCache& cache) {
  const std::int64_t most = cache.open().max_step_tokens;
  require(step.num_tokens <= most, "token_ids: has ", step.num_tokens,
          " tokens, the cache's open keys take ", most);
  for (std::int64_t b = 0; b < step.num_requests; ++b) {
    const std::int64_t first = step.seq_lens[b] - step.query_start[b + 1];
    for (std::int64_t t = step.query_start[b]; t < step.query_start[b + 1]; ++t) {
      for (std::int64_t group = 0; group < step.num_groups; ++group) {
        require((first + t - step.slots(group)[t]) % kOpenTokens == 0,
                "slot_mapping: ", step.slots(group)[t], " is not for position ", first + t);
      }
    }
  }
}

// Checks that each request has a slot of its own: threads write them at the same time.
void check_state_slots(const Step& step, std::size_t count, std::size_t num_slots) {
  require(static_cast<std::int64_t>(count) == step.num_requests,
          "state_slots: must be as long as seq_lens");
  std::vector<bool> is_taken(num_slots);
  for (std::size_t b = 0; b < count; ++b) {
    const std::int32_t slot = step.state_slots[b];
    require(slot >= 0 && static_cast<std::size_t>(slot) < num_slots, "state_slots: ", slot,
            " is not among the ", num_slots, " slots");
    require(!is_taken[static_cast<std::size_t>(slot)], "state_slots: ", slot, " is there twice");
    is_taken[static_cast<std::size_t>(slot)] = true;
    require(step.query_start[b] < step.query_start[b + 1], "query_start: must rise");
  }
  require(step.num_requests == 0 ||
              (step.query_start[0] == 0 && step.query_start[step.num_requests] == step.num_tokens),
          "query_start: must go from 0 to the number of tokens");
}

// Groups the draws by row, because one thread makes all draws of a row.
void add_draws(const std::vector<RowDraw>& row_draws, std::int64_t vocab_size, Step& step,
               std::vector<Draw>& draws, std::vector<std::int64_t>& tokens) {
  draws.reserve(row_draws.size());
  for (std::size_t i = 0; i < row_draws.size(); ++i) {
    const auto& [row, draw] = row_draws[i];
    require(row >= 0 && row < step.num_logits, "draws: there is no row ", row);
    require(step.draws.empty() || step.draws.back().row <= row, "draws: must be in order of rows");
    draw->check(vocab_size);
    draws.push_back(draw->draw());
    if (step.draws.empty() || step.draws.back().row != row) {
      step.draws.push_back({row, draws.data() + i, 0, tokens.data() + i});
    }
    ++step.draws.back().count;
  }
}

}  // namespace

std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::int64_t> run_program(
    Program& self, const Output& output, const Ints& token_ids, const Ints& positions,
    const Slots& slot_mapping, const Ints& query_start, const Ints& seq_lens,
    const BlockTables& block_tables, const Ints& logits_indices, const Ints& state_slots,
    const std::vector<FloatMatrix>& frequencies, const std::vector<FloatMatrix>& inputs,
    KVCache* kv_cache, const std::optional<Output>& states,
    const std::optional<Seconds>& stage_seconds, const std::vector<RowDraw>& row_draws) {
  Step step;
  step.num_tokens = static_cast<std::int64_t>(token_ids.size());
  step.num_requests = static_cast<std::int64_t>(seq_lens.size());
  step.num_logits = static_cast<std::int64_t>(logits_indices.size());
  step.num_groups = static_cast<std::int64_t>(block_tables.shape(0));
  step.max_blocks = static_cast<std::int64_t>(block_tables.shape(2));
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.slot_mapping = slot_mapping.data();
  step.query_start = query_start.data();
  step.seq_lens = seq_lens.data();
  step.block_tables = block_tables.data();
  step.logits_indices = logits_indices.data();
  step.frequencies = const_rows(frequencies);
  step.inputs = const_rows(inputs);
  step.kv_cache = kv_cache;
  step.state_slots = state_slots.data();
  if (states) {
    step.states = states->data();
    step.state_width = static_cast<std::int64_t>(states->shape(1));
  }
  step.output = output.data();
  step.stage_seconds = stage_seconds ? stage_seconds->data() : nullptr;

  const std::size_t num_tokens = token_ids.size();
  require(positions.size() == num_tokens && slot_mapping.shape(1) == num_tokens,
          "positions, slot_mapping: must be as long as token_ids");
  require(slot_mapping.shape(0) == block_tables.shape(0),
          "slot_mapping, block_tables: must have a row for each group");
  require(query_start.size() == seq_lens.size() + 1 && block_tables.shape(1) == seq_lens.size(),
          "query_start, block_tables: must have a row for each of seq_lens");
  require(!stage_seconds || stage_seconds->size() == self.stage_names().size(),
          "stage_seconds: must have one number per stage");
  const std::int64_t output_rows =
      self.output_rows() == RowSet::kTokens ? step.num_tokens : step.num_logits;
  require(static_cast<std::int64_t>(output.shape(0)) == output_rows &&
              static_cast<std::int64_t>(output.shape(1)) == self.output_width(),
          "output: must be [", output_rows, ", ", self.output_width(), "]");
  if (kv_cache != nullptr) check_cache_arrays(step, *kv_cache);
  if (states) check_state_slots(step, state_slots.size(), states->shape(0));
  std::vector<OpenGroups> open_groups;
  if (kv_cache != nullptr && has_open_keys(kv_cache->shape().format)) {
    check_state_slots(step, state_slots.size(),
                      static_cast<std::size_t>(kv_cache->open().num_slots));
    check_open_keys(step, *kv_cache);
    open_groups =
        plan_open_groups({step.num_requests, step.query_start, step.seq_lens, step.state_slots});
    step.open_groups = open_groups.data();
  }
  std::vector<LargestMark> marks(logits_indices.size());
  step.largest = marks.data();
  std::int64_t expert_bytes = 0;
  step.expert_bytes = &expert_bytes;
  std::vector<Draw> draws;
  std::vector<std::int64_t> tokens(row_draws.size(), kUndrawn);
  add_draws(row_draws, self.output_width(), step, draws, tokens);
  {
    const nanobind::gil_scoped_release without_gil;
    self.run(step);
  }
  std::vector<std::int64_t> columns;
  for (const LargestMark mark : marks) {
    if (mark != 0) columns.push_back(column_of(mark));
  }
  return {columns, tokens, expert_bytes};
}

}  // namespace pellucid
