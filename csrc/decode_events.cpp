// Writes the JSON of decode steps' events, and counts the bytes that these steps read and write.
#include "decode_events.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace pellucid {
namespace {

// Appends strings and whole numbers.
class Json {
 public:
  explicit Json(std::string& text) : text_(text) {}

  Json& operator<<(std::string_view text) {
    text_.append(text);
    return *this;
  }

  Json& operator<<(std::int64_t number) {
    char digits[std::numeric_limits<std::int64_t>::digits10 + 3];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
    text_.append(digits, static_cast<std::size_t>(end - digits));
    return *this;
  }

 private:
  std::string& text_;
};

std::int64_t rounded(double number) { return static_cast<std::int64_t>(std::nearbyint(number)); }

bool is_in_a_group(std::int64_t group) { return group != 0; }

}  // namespace

void DecodeCosts::count(DecodeStep& step, std::int64_t expert_bytes) const {
  std::int64_t numbers = 0;
  for (const auto& [window, numbers_read] : numbers_by_window) {
    std::int64_t positions = 0;
    for (const std::int64_t end : step.ends) positions += window ? std::min(end, window) : end;
    numbers += positions * numbers_read;
  }
  const auto num_tokens = static_cast<std::int64_t>(step.ends.size());
  const double kv_bytes = static_cast<double>(numbers) * bytes_per_number +
                          static_cast<double>(state_bytes * num_tokens);
  const double written = static_cast<double>(num_tokens) * bytes_per_position;
  step.weight_bytes = weight_bytes + expert_bytes;
  step.kv_read_bytes = rounded(kv_bytes - written);
  step.kv_write_bytes = rounded(written);
  step.is_predicted = flops_per_second > 0;
  if (!step.is_predicted) return;
  const double compute = static_cast<double>(step.flops) / flops_per_second;
  const double memory = (static_cast<double>(step.weight_bytes) + kv_bytes) / bytes_per_second;
  step.is_compute_bound = compute > memory;
  step.predicted_us = rounded(std::max(compute, memory) * 1e6);
}

void DecodeEventWriter::begin(std::int64_t step, std::string_view name) {
  if (!json_.empty()) json_.push_back(',');
  Json(json_) << R"({"seq":)" << next_number_++ << R"(,"t_us":)" << t_us_ << R"(,"step":)" << step
              << R"(,"event":{"ev":")" << name;
}

void DecodeEventWriter::write_tokens(const DecodeStep& step, const std::vector<std::string>& names,
                                     const std::vector<std::string_view>& texts) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    begin(step.number, "tok.text");
    Json(json_) << R"(","req":)" << names[i] << R"(,"pos":)" << step.ends[i] << R"(,"id":)"
                << step.token_ids[i] << R"(,"text":)" << texts[i] << R"(,"src":"target","itl_us":)"
                << step.gap_us << "}}";
  }
}

void DecodeEventWriter::write_blocks(const DecodeStep& step) {
  if (step.fills.empty() && step.more_rows.empty()) return;
  begin(step.number, "kv");
  Json out(json_);
  std::string_view before = R"(","ops":[)";
  for (const DecodeStep::Fill& fill : step.fills) {
    out << before << R"(["F",)" << fill.block << "," << fill.num_tokens << ",null]";
    before = ",";
  }
  if (!step.more_rows.empty()) out << before << step.more_rows;
  out << R"(],"used":)" << step.used << R"(,"cached":)" << step.cached << R"(,"free":)" << step.free
      << R"(,"waste_tok":)" << step.num_wasted;
  const std::vector<std::int64_t>& more = step.more_groups;
  if (std::any_of(step.fills.begin(), step.fills.end(),
                  [](const DecodeStep::Fill& fill) { return is_in_a_group(fill.group); }) ||
      std::any_of(more.begin(), more.end(), is_in_a_group)) {
    before = R"(,"groups":[)";
    for (const DecodeStep::Fill& fill : step.fills) {
      out << before << fill.group;
      before = ",";
    }
    for (const std::int64_t group : more) {
      out << before << group;
      before = ",";
    }
    out << "]";
  }
  out << "}}";
}

void DecodeEventWriter::write_end(const DecodeStep& step, const std::vector<std::string>& names) {
  begin(step.number, "step");
  Json out(json_);
  out << R"(","kind":"decode","batch":)";
  for (std::size_t i = 0; i < names.size(); ++i) {
    out << (i == 0 ? "[[" : ",[") << names[i] << ",1," << step.ends[i] << "]";
  }
  out << R"(],"budget_tok":)" << budget_ << R"(,"sched_us":)" << step.sched_us << R"(,"fwd_us":)"
      << step.fwd_us << R"(,"sample_us":)" << step.sample_us << R"(,"emit_us":)" << step.emit_us
      << R"(,"idle_us":)" << step.idle_us << R"(,"flops":)" << step.flops << R"(,"w_bytes":)"
      << step.weight_bytes << R"(,"kv_read_bytes":)" << step.kv_read_bytes
      << R"(,"kv_write_bytes":)" << step.kv_write_bytes;
  if (step.is_predicted) {
    out << R"(,"bound":")" << (step.is_compute_bound ? "compute" : "memory") << R"(","pred_us":)"
        << step.predicted_us;
  }
  if (step.draft_us != 0) out << R"(,"draft_us":)" << step.draft_us;
  out << "}}";
}

}  // namespace pellucid
