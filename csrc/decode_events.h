// The events of decode steps as JSON: what src/pellucid/observing/events.py encodes of `tok.text`,
// `kv` and `step`, byte by byte, for steps whose requests decode one token each. A small model has
// thousands of these a second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pellucid {

// A step, or a part of one. Vectors of numbers have one for each request.
struct DecodeStep {
  // A row of `kv`: how many tokens a block has now.
  struct Fill {
    std::int64_t block, num_tokens, group;
  };

  std::int64_t number = 0;
  bool has_tokens = false, has_blocks = false, has_end = false;  // which events
  std::vector<std::int64_t> ends;                                // of texts, after the step
  // Of `tok.text`.
  std::vector<std::int64_t> token_ids;
  std::int64_t gap_us = 0;  // since the tokens before
  // Of `kv`, which is no event without any row.
  std::vector<Fill> fills;
  std::string more_rows;  // behind those of `fills`: JSON, separated by commas
  std::vector<std::int64_t> more_groups;
  std::int64_t used = 0, cached = 0, free = 0, num_wasted = 0;
  // Of `step`.
  std::int64_t sched_us = 0, fwd_us = 0, sample_us = 0, emit_us = 0, idle_us = 0, draft_us = 0;
  std::int64_t flops = 0, weight_bytes = 0, kv_read_bytes = 0, kv_write_bytes = 0;
  std::int64_t predicted_us = 0;
  bool is_predicted = false, is_compute_bound = false;
};

// What a forward of decode steps costs, as facts/formulas.py counts it, which counts the
// operations.
struct DecodeCosts {
  std::int64_t weight_bytes = 0;  // with the head
  double bytes_per_position = 0;  // of K and V, written
  // Window of layers, 0 for none, and the numbers of a position's K that these layers read.
  std::vector<std::pair<std::int64_t, std::int64_t>> numbers_by_window;
  double bytes_per_number = 0;  // of K and V together
  std::int64_t state_bytes = 0;
  double flops_per_second = 0, bytes_per_second = 0;  // 0: not measured

  // Fills in the bytes and the prediction of a step whose ends and operations are known.
  void count(DecodeStep& step, std::int64_t expert_bytes) const;
};

// Numbers events, and appends them to an array of JSON.
class DecodeEventWriter {
 public:
  // `budget`: tokens that a step could have had.
  DecodeEventWriter(std::int64_t next_number, std::int64_t t_us, std::int64_t budget)
      : next_number_(next_number), t_us_(t_us), budget_(budget) {}

  std::int64_t next_number() const { return next_number_; }
  std::int64_t t_us() const { return t_us_; }  // of the last event
  std::string take_json() { return std::move(json_); }

  // What comes next is stamped `t_us`, or later where an event before it was.
  void stamp(std::int64_t t_us) { t_us_ = t_us > t_us_ ? t_us : t_us_; }

  // `names` of the requests and `texts` of the tokens are JSON.
  void write_tokens(const DecodeStep& step, const std::vector<std::string>& names,
                    const std::vector<std::string_view>& texts);
  void write_blocks(const DecodeStep& step);
  void write_end(const DecodeStep& step, const std::vector<std::string>& names);

 private:
  void begin(std::int64_t step, std::string_view name);

  std::int64_t next_number_, t_us_;
  const std::int64_t budget_;
  std::string json_;  // events, separated by commas
};

}  // namespace pellucid
