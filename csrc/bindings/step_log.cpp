// StepLog, which keeps what plain decode steps leave, and LoggedEvents, what it makes of them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "decode_events.h"
#include "require.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

constexpr std::size_t kMaxTexts = 1 << 16;  // of tokens that are remembered

// Of a ScheduledRequest, of a Taken, and of BlockChanges.
enum ScheduledField : Py_ssize_t {
  kRequestId,
  kStart,
  kEnd,
  kNumRecomputed = 4,
  kNumDrafts,
  kSamplers,
  kIsDecoding = 9
};
enum TakenField : Py_ssize_t { kTokenIds, kTokensEnd };
enum ChangesField : Py_ssize_t { kRows, kGroups, kUsed, kCached, kFree, kNumWasted };

// What `begin` says that the log tells: TELLS_TOKENS and TELLS_BLOCKS of observing/events.py.
constexpr int kTellsTokens = 1, kTellsBlocks = 2;

enum class ToldTokens { kNone, kSome, kAll };

// Requests that got a token, and when.
using Tokens = std::pair<nb::typed<nb::tuple, nb::str, nb::ellipsis>, double>;

struct Requests {
  std::vector<nb::object> ids;
  std::vector<std::string> names;  // as JSON; empty until they are written
};

// What one call has kept.
struct Entry {
  double sampled, ended;               // seconds
  std::shared_ptr<Requests> requests;  // null: there are none
  nb::object rows;                     // of `kv`, behind the fills
  DecodeStep step;
};

struct Step {
  std::int64_t number = -1;
  double time = 0;                     // when it was sampled
  std::shared_ptr<Requests> requests;  // null: not each of them decoded one token
};

nb::handle field(nb::handle tuple, Py_ssize_t index) {
  PyObject* const item = PyTuple_GetItem(tuple.ptr(), index);
  if (!item) throw nb::python_error();
  return item;
}

std::int64_t number(nb::handle value) {
  const long long result = PyLong_AsLongLong(value.ptr());
  if (result == -1 && PyErr_Occurred()) throw nb::python_error();
  return result;
}

std::int64_t microseconds(double seconds) {
  return static_cast<std::int64_t>(std::nearbyint(seconds * 1e6));
}

// The name of an attribute, made once.
class Name {
 public:
  explicit Name(const char* name) : name_(nb::steal(PyUnicode_InternFromString(name))) {}

  nb::object of(nb::handle object) const {
    PyObject* const value = PyObject_GetAttr(object.ptr(), name_.ptr());
    if (!value) throw nb::python_error();
    return nb::steal(value);
  }

  double seconds_of(nb::handle times) const {
    const double value = PyFloat_AsDouble(of(times).ptr());
    if (value == -1.0 && PyErr_Occurred()) throw nb::python_error();
    return value;
  }

 private:
  nb::object name_;
};

bool is_same(nb::handle left, nb::handle right) { return left.is(right) || left.equal(right); }

// Whether a part of a step decodes one token.
bool decodes_one(nb::handle part) {
  return field(part, kIsDecoding).is(nb::handle(Py_True)) &&
         number(field(part, kEnd)) - number(field(part, kStart)) == 1 &&
         number(field(part, kNumRecomputed)) == 0 && number(field(part, kNumDrafts)) == 0 &&
         nb::len(field(part, kSamplers)) == 1;
}

bool takes_one(nb::handle taken) {
  return nb::len(field(taken, kTokenIds)) == 1 && field(taken, kTokensEnd).is_none();
}

std::string_view bytes_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

struct LoggedEvents {
  std::int64_t seq, last_seq, t_us;
  std::string json;
};

class StepLog {
 public:
  StepLog(std::int64_t block_size, std::int64_t budget, DecodeCosts costs, nb::callable encode,
          nb::callable show)
      : block_size_(block_size),
        budget_(budget),
        costs_(std::move(costs)),
        encode_(std::move(encode)),
        show_(std::move(show)) {}

  int begin(double now, std::int64_t number, nb::handle output, nb::handle taken,
            nb::handle observed) {
    before_ = std::exchange(latest_, {number, now, nullptr});
    scheduled_ = nb::borrow<nb::tuple>(scheduled_name_.of(output));
    tables_ = nb::borrow<nb::tuple>(tables_name_.of(output));
    taken_ = nb::isinstance<nb::dict>(taken) ? nb::borrow<nb::dict>(taken) : no_tokens_;
    latest_.requests = requests_of_step();
    is_plain_ =
        latest_.requests && latest_.requests == before_.requests && number == before_.number + 1;
    gap_us_ = microseconds(now - before_.time);
    has_tokens_ = is_plain_ && told_tokens_ == ToldTokens::kAll && nb::len(observed) == 0;
    has_blocks_ = is_plain_ && follows_blocks_;
    if (has_blocks_) count_tokens();
    if (!is_plain_) forget_step();
    const bool are_tokens_told = has_tokens_ || told_tokens_ == ToldTokens::kNone;
    return (are_tokens_told ? kTellsTokens : 0) | (has_blocks_ ? kTellsBlocks : 0);
  }

  void follow_blocks(bool follows) { follows_blocks_ = follows; }

  void tell_tokens(bool has_some, bool has_all) {
    told_tokens_ = has_all ? ToldTokens::kAll : has_some ? ToldTokens::kSome : ToldTokens::kNone;
  }

  bool is_plain() const { return is_plain_; }

  void add_blocks(nb::object changes) {
    if (!has_blocks_) count_tokens();
    has_blocks_ = true;
    changes_ = std::move(changes);
  }

  void add_changes(double now, std::int64_t step, nb::handle changes) {
    Entry entry{now, now, nullptr, nb::object(), {}};
    entry.step.number = step;
    entry.step.has_blocks = true;
    take_changes(changes, entry);
    entries_.push_back(std::move(entry));
  }

  bool split(bool with_blocks) {
    if (has_blocks_ && !with_blocks) {
      has_blocks_ = false;
      counted_ = before_counted_;
      num_tokens_ -= static_cast<std::int64_t>(latest_.requests->ids.size());
      gaps_us_.resize(gaps_us_.size() - latest_.requests->ids.size());
    }
    if (!has_tokens_ && !has_blocks_) return false;
    entries_.push_back(begun(latest_.time));
    return true;
  }

  bool finish(double now, const nb::list& works, nb::handle times, std::optional<double> last,
              std::int64_t expert_bytes) {
    if (!std::exchange(is_plain_, false)) return false;
    entries_.push_back(begun(now));
    DecodeStep& kept = entries_.back().step;
    kept.has_end = true;
    for (const nb::handle work : works) kept.flops += number(flops_.of(work));
    const double started = started_.seconds_of(times);
    const double is_scheduled = scheduled_name_.seconds_of(times);
    const double executed = executed_.seconds_of(times);
    const double sampled = sampled_.seconds_of(times);
    kept.sched_us = microseconds(is_scheduled - started);
    kept.fwd_us = microseconds(executed - is_scheduled);
    kept.sample_us = microseconds(sampled - executed);
    kept.emit_us = microseconds(now - sampled);
    kept.idle_us = last ? std::max<std::int64_t>(0, microseconds(started - *last)) : 0;
    kept.draft_us = microseconds(drafting_.seconds_of(times));
    costs_.count(kept, expert_bytes);
    forget_step();
    return true;
  }

  std::optional<Tokens> take_told() { return tokens_of(std::exchange(told_, {})); }
  std::optional<Tokens> take_counted() { return tokens_of(std::exchange(counted_, {})); }

  std::pair<std::int64_t, std::vector<std::int64_t>> take_counts() {
    return {std::exchange(num_tokens_, 0), std::exchange(gaps_us_, {})};
  }

  LoggedEvents take(std::size_t count, std::int64_t seq, std::int64_t t_us, double start) {
    require(count <= entries_.size(), "count: ", count, " of ", entries_.size());
    // Calls of Python may let the engine's thread keep more.
    const auto end = entries_.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<Entry> taken(std::move_iterator(entries_.begin()), std::move_iterator(end));
    entries_.erase(entries_.begin(), end);
    if (texts_.size() > kMaxTexts) texts_.clear();
    for (Entry& entry : taken) prepare(entry);
    const nb::gil_scoped_release without_gil;  // nobody else touches what was taken, nor texts
    DecodeEventWriter writer(seq, t_us, budget_);
    std::vector<std::string_view> texts;
    for (const Entry& entry : taken) {
      const DecodeStep& step = entry.step;
      writer.stamp(microseconds(entry.sampled - start));
      if (step.has_tokens) {
        texts.clear();
        for (const std::int64_t id : step.token_ids) texts.push_back(texts_.at(id));
        writer.write_tokens(step, entry.requests->names, texts);
      }
      if (step.has_blocks) writer.write_blocks(step);
      writer.stamp(microseconds(entry.ended - start));
      if (step.has_end) writer.write_end(step, entry.requests->names);
    }
    return {seq, writer.next_number() - 1, writer.t_us(), writer.take_json()};
  }

 private:
  // Those of the step before if they are the same; null: not each of them decodes one token.
  std::shared_ptr<Requests> requests_of_step() const {
    if (scheduled_.size() == 0 || scheduled_.size() != taken_.size()) return nullptr;
    bool are_same = before_.requests && before_.requests->ids.size() == scheduled_.size();
    std::size_t index = 0;
    for (const auto [request_id, tokens] : taken_) {
      const nb::handle part = scheduled_[index];
      if (!is_same(field(part, kRequestId), request_id) || !decodes_one(part) ||
          !takes_one(tokens)) {
        return nullptr;
      }
      are_same = are_same && is_same(before_.requests->ids[index], request_id);
      ++index;
    }
    if (are_same) return before_.requests;
    auto requests = std::make_shared<Requests>();
    for (const nb::handle part : scheduled_) {
      requests->ids.push_back(nb::borrow(field(part, kRequestId)));
    }
    return requests;
  }

  // Frees what a step was made of while it is still in the caches.
  void forget_step() {
    scheduled_ = nb::tuple();
    tables_ = nb::tuple();
    taken_ = no_tokens_;
  }

  void count_tokens() {
    before_counted_ = std::exchange(counted_, latest_);
    num_tokens_ += static_cast<std::int64_t>(latest_.requests->ids.size());
    gaps_us_.insert(gaps_us_.end(), latest_.requests->ids.size(), gap_us_);
  }

  // The latest step with what of it was not kept yet.
  Entry begun(double ended) {
    Entry entry{latest_.time, ended, latest_.requests, nb::object(), {}};
    DecodeStep& step = entry.step;
    step.number = latest_.number;
    step.ends.reserve(taken_.size());
    for (const nb::handle part : scheduled_) step.ends.push_back(number(field(part, kEnd)));
    step.has_tokens = std::exchange(has_tokens_, false);
    if (step.has_tokens) {
      step.gap_us = gap_us_;
      step.token_ids.reserve(taken_.size());
      for (const auto [request_id, tokens] : taken_) {
        const nb::handle token_ids = field(tokens, kTokenIds);
        step.token_ids.push_back(number(nb::object(token_ids[0])));
      }
      told_ = latest_;
    }
    step.has_blocks = std::exchange(has_blocks_, false);
    if (step.has_blocks) {
      fill(step);
      wasted_ -= static_cast<std::int64_t>(step.fills.size());
      take_changes(std::exchange(changes_, nb::none()), entry);
    }
    return entry;
  }

  // The slots that the latest step has filled.
  void fill(DecodeStep& step) const {
    step.fills.reserve(taken_.size());
    for (std::size_t i = 0; i < step.ends.size(); ++i) {
      const std::int64_t position = step.ends[i] - 1;
      const auto index = static_cast<Py_ssize_t>(position / block_size_);
      const nb::tuple tables = nb::borrow<nb::tuple>(tables_[i]);
      for (std::size_t group = 0; group < tables.size(); ++group) {
        step.fills.push_back({number(field(tables[group], index)), position % block_size_ + 1,
                              static_cast<std::int64_t>(group)});
      }
    }
  }

  // Counts what has changed beside slots that were filled.
  void take_changes(nb::handle changes, Entry& entry) {
    DecodeStep& step = entry.step;
    if (!changes.is_none()) {
      entry.rows = nb::borrow(field(changes, kRows));
      for (const nb::handle row : entry.rows) {
        if (nb::cast<std::string_view>(field(row, 0)) == "A") wasted_ += block_size_;
      }
      for (const nb::handle group : nb::borrow(field(changes, kGroups))) {
        step.more_groups.push_back(number(group));
      }
      used_ = number(field(changes, kUsed));
      cached_ = number(field(changes, kCached));
      free_ = number(field(changes, kFree));
      if (const nb::handle wasted = field(changes, kNumWasted); !wasted.is_none()) {
        wasted_ = number(wasted);
      }
    }
    step.used = used_;
    step.cached = cached_;
    step.free = free_;
    step.num_wasted = wasted_;
  }

  static std::optional<Tokens> tokens_of(const Step& step) {
    if (!step.requests) return std::nullopt;
    nb::list ids;
    for (const nb::object& id : step.requests->ids) ids.append(id);
    return Tokens(nb::tuple(ids), step.time);
  }

  // Makes the texts that writing an entry needs.
  void prepare(Entry& entry) {
    if (entry.requests && entry.requests->names.empty()) {
      for (const nb::object& id : entry.requests->ids) entry.requests->names.push_back(json_of(id));
    }
    for (const std::int64_t id : entry.step.token_ids) {
      if (texts_.find(id) == texts_.end()) texts_[id] = json_of(show_(id));
    }
    if (entry.rows.is_valid()) {
      const std::string rows = json_of(entry.rows);
      entry.step.more_rows = rows.substr(1, rows.size() - 2);  // without brackets
    }
  }

  std::string json_of(nb::handle value) const {
    return std::string(bytes_of(nb::cast<nb::bytes>(encode_(value))));
  }

  const std::int64_t block_size_;
  const std::int64_t budget_;
  const DecodeCosts costs_;
  const nb::callable encode_, show_;
  const Name scheduled_name_{"scheduled"}, tables_name_{"block_tables"}, flops_{"flops"},
      started_{"started"}, executed_{"executed"}, sampled_{"sampled"}, drafting_{"drafting"};
  std::unordered_map<std::int64_t, std::string> texts_;  // of tokens
  std::deque<Entry> entries_;
  // The latest step, and the one before it.
  Step latest_, before_;
  nb::tuple scheduled_, tables_;
  nb::dict taken_;
  const nb::dict no_tokens_;
  nb::object changes_ = nb::none();
  ToldTokens told_tokens_ = ToldTokens::kNone;
  std::int64_t gap_us_ = 0;
  bool is_plain_ = false, has_tokens_ = false, has_blocks_ = false;
  bool follows_blocks_ = false;
  // Whose tokens were kept and counted last; those of before until the latest are certain.
  Step told_, counted_, before_counted_;
  // Blocks, and slots of used blocks that hold no token.
  std::int64_t used_ = 0, cached_ = 0, free_ = 0, wasted_ = 0;
  // Since `take_counts`.
  std::int64_t num_tokens_ = 0;
  std::vector<std::int64_t> gaps_us_;
};

}  // namespace

void bind_step_log(nb::module_& m) {
  nb::class_<LoggedEvents>(
      m, "LoggedEvents",
      "Events that follow each other, as JSON: an array without its brackets, empty if "
      "`last_seq` is before `seq`. `t_us` is of the last one.")
      .def_ro("seq", &LoggedEvents::seq)
      .def_ro("last_seq", &LoggedEvents::last_seq)
      .def_ro("t_us", &LoggedEvents::t_us)
      .def_prop_ro("num_events",
                   [](const LoggedEvents& self) { return self.last_seq + 1 - self.seq; })
      .def_prop_ro("json", [](const LoggedEvents& self) {
        return nb::bytes(self.json.data(), self.json.size());
      });
  nb::class_<StepLog>(
      m, "StepLog",
      "Keeps what decode steps leave, as numbers, until somebody reads their events. It takes "
      "steps that are plain: each request decodes one token, goes on, and decoded one in the step "
      "before.")
      .def(
          "__init__",
          [](StepLog* self, std::int64_t block_size, std::int64_t budget, std::int64_t weight_bytes,
             double bytes_per_position,
             std::vector<std::pair<std::int64_t, std::int64_t>> numbers_by_window,
             double bytes_per_number, std::int64_t state_bytes, double flops_per_second,
             double bytes_per_second, nb::callable encode, nb::callable show) {
            require(block_size > 0, "block_size: must be positive");
            new (self) StepLog(block_size, budget,
                               {weight_bytes, bytes_per_position, std::move(numbers_by_window),
                                bytes_per_number, state_bytes, flops_per_second, bytes_per_second},
                               std::move(encode), std::move(show));
          },
          "block_size"_a, "budget"_a, "weight_bytes"_a, "bytes_per_position"_a,
          "numbers_by_window"_a, "bytes_per_number"_a, "state_bytes"_a, "flops_per_second"_a,
          "bytes_per_second"_a, "encode"_a, "show"_a,
          "`encode(value)` is its JSON, `show(token_id)` the text of a token; both are called by "
          "`take`. A window of 0 is none, and so are speeds of 0.")
      .def("begin", &StepLog::begin, "now"_a, "step"_a, "output"_a, "taken"_a, "observed"_a,
           "A step has been sampled at `now`, seconds; to be called of each. `observed` has what "
           "somebody else tells of its tokens. Returns what nobody else has to tell: TELLS_TOKENS, "
           "TELLS_BLOCKS.")
      .def("follow_blocks", &StepLog::follow_blocks, "follows"_a,
           "Whether `kv` of plain steps is kept unasked.")
      .def("tell_tokens", &StepLog::tell_tokens, "has_some"_a, "has_all"_a,
           "Whether any tokens are to be told, and whether those of all requests.")
      .def_prop_ro("is_plain", &StepLog::is_plain, "Whether the step that has begun is.")
      .def("add_blocks", &StepLog::add_blocks, "changes"_a.none(),
           "Has `kv` of the step kept, which is plain, with changes beside the slots that it has "
           "filled, or None.")
      .def("add_changes", &StepLog::add_changes, "now"_a, "step"_a, "changes"_a,
           "Keeps `kv` of changes between steps.")
      .def(
          "split", &StepLog::split, "with_blocks"_a,
          "Keeps the events of the latest step but `step`, and those of blocks only `with_blocks`; "
          "returns whether there are any.")
      .def("finish", &StepLog::finish, "now"_a, "works"_a, "times"_a, "last"_a.none(),
           "expert_bytes"_a, "Keeps the events of the latest step, if it is plain.")
      .def("take_told", &StepLog::take_told,
           "The latest tokens that were kept, unless they were asked for.")
      .def("take_counted", &StepLog::take_counted,
           "The latest tokens that were counted, unless they were asked for.")
      .def(
          "take_counts", &StepLog::take_counts,
          "Tokens of `add_blocks` since the last call, and for each of them the microseconds since "
          "the request's token before.")
      .def("take", &StepLog::take, "count"_a, "seq"_a, "t_us"_a, "start"_a,
           "Makes the events of what the oldest `count` calls have kept. `seq` is the number of "
           "the first, "
           "`t_us` the least that they are stamped, `start` the second of 0 us.");
}

}  // namespace pellucid
