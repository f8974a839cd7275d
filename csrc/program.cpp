#include "program.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

namespace pellucid {
namespace {

constexpr std::int64_t kLineFloats = static_cast<std::int64_t>(kCacheLine / sizeof(float));
constexpr std::int64_t kMaxRowsPerGrab = 16;  // so that a row is still in cache in the next phase

std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

std::int64_t num_rows(const Step& step, RowSet rows) {
  return rows == RowSet::kTokens ? step.num_tokens : step.num_logits;
}

// Fetches the beginning of a thread's share of a stream into the second-level cache, some lines at
// a time: memory would be idle while threads wait for each other.
class Prefetcher {
 public:
  // Goes on where it was if the stream is the same.
  void turn_to(const Stream& stream, const Worker& worker) {
    const std::uint8_t* const begin =
        stream.data + worker.share_begin(stream.num_items) * stream.item_bytes;
    if (begin == begin_) return;
    const std::int64_t num_bytes = stream.num_items * stream.item_bytes;
    begin_ = next_ = begin;
    end_ = begin + std::min(num_bytes / worker.num_threads(), kMaxBytes);
  }

  // False when all is asked for.
  bool operator()() {
    if (next_ >= end_) return false;
    for (int line = 0; line < kLinesAtATime; ++line) {
      __builtin_prefetch(next_, 0, 2);
      next_ += kCacheLine;
    }
    return true;
  }

 private:
  static constexpr std::int64_t kMaxBytes = 256 << 10;  // a quarter of such a cache
  static constexpr int kLinesAtATime = 4;

  const std::uint8_t* begin_ = nullptr;
  const std::uint8_t* next_ = nullptr;
  const std::uint8_t* end_ = nullptr;
};

double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

Program::Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool,
                 std::int64_t max_rows, std::size_t small_step_bytes)
    : kernels_(kernels),
      pool_(std::move(pool)),
      max_rows_(max_rows),
      small_step_bytes_(small_step_bytes) {
  assert(max_rows >= 1);
}

int Program::add(const Buffer& buffer) {
  buffers_.push_back(buffer);
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_buffer(RowSet rows, std::int64_t width) {
  // An odd number of lines: rows at a distance of a power of two would share a few sets of the
  // first-level cache.
  const std::int64_t lines = (width + kLineFloats - 1) / kLineFloats | 1;
  const std::int64_t stride = lines * kLineFloats;
  const auto num_bytes = static_cast<std::size_t>(max_rows_ * stride) * sizeof(float);
  return add({rows, width, stride, num_bytes, std::numeric_limits<int>::max(), -1});
}

int Program::add_scratch(std::size_t num_bytes) {
  return add({RowSet::kTokens, 0, 0, round_up(num_bytes, kCacheLine),
              std::numeric_limits<int>::max(), -1});
}

void Program::add_preparation(std::function<void(const Step&)> prepare) {
  preparations_.push_back(std::move(prepare));
}

void Program::add_row_phase(std::string name, RowSet rows, std::vector<int> buffers,
                            RunRow run_row) {
  if (stages_.empty() || !stages_.back().has_row_items || stages_.back().rows != rows) {
    const std::int64_t grabs_per_thread = 4;
    const std::int64_t grabs = grabs_per_thread * num_threads();
    Stage stage{};
    stage.has_row_items = true;
    stage.rows = rows;
    stage.num_items = [rows](const Step& step) { return num_rows(step, rows); };
    stage.grain = [rows, grabs](const Step& step) {
      return std::clamp<std::int64_t>(num_rows(step, rows) / grabs, 1, kMaxRowsPerGrab);
    };
    stages_.push_back(std::move(stage));
  }
  stages_.back().phases.push_back(
      {std::move(name), [run_row = std::move(run_row)](const Step& step, const Share& share) {
         for (std::int64_t row = share.begin; row < share.end; ++row) run_row(step, row);
       }});
  use(buffers);
}

void Program::add_phase(std::string name, std::vector<int> buffers, Count num_items, Count grain,
                        Run run, Stream stream) {
  Stage stage{};
  stage.num_items = std::move(num_items);
  stage.grain = std::move(grain);
  stage.stream = stream;
  stages_.push_back(std::move(stage));
  stages_.back().phases.push_back({std::move(name), std::move(run)});
  use(buffers);
}

void Program::use(const std::vector<int>& buffers) {
  const int stage = static_cast<int>(stages_.size()) - 1;
  for (const int index : buffers) {
    Buffer& buffer = buffers_[static_cast<std::size_t>(index)];
    buffer.first_stage = std::min(buffer.first_stage, stage);
    buffer.last_stage = std::max(buffer.last_stage, stage);
  }
}

void Program::set_output(int buffer) {
  output_ = buffer;
  Buffer& output = buffers_[static_cast<std::size_t>(buffer)];
  output.stride = output.width;
  output.num_bytes = 0;
}

std::int64_t Program::output_width() const {
  return output_ < 0 ? 0 : buffers_[static_cast<std::size_t>(output_)].width;
}

RowSet Program::output_rows() const {
  return output_ < 0 ? RowSet::kTokens : buffers_[static_cast<std::size_t>(output_)].rows;
}

std::vector<std::string> Program::stage_names() const {
  std::vector<std::string> names;
  for (const Stage& stage : stages_) {
    std::string name;
    for (const Phase& phase : stage.phases) name += (name.empty() ? "" : " + ") + phase.name;
    names.push_back(std::move(name));
  }
  return names;
}

void Program::finish() {
  Stream next;
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    stage->next_stream = next;
    if (stage->stream.data != nullptr) next = stage->stream;
  }
  place_buffers();
  std::size_t num_bytes = 0;
  for (const Buffer& buffer : buffers_) {
    num_bytes = std::max(num_bytes, buffer.offset + buffer.num_bytes);
  }
  arena_ = AlignedBuffer(num_bytes);
  for (Buffer& buffer : buffers_) buffer.data = arena_.data() + buffer.offset;
}

// Largest first, each at the lowest address that no buffer of the same stages has.
void Program::place_buffers() {
  std::vector<std::size_t> order(buffers_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers_[a].num_bytes > buffers_[b].num_bytes;
  });
  std::vector<const Buffer*> placed;  // by address
  for (const std::size_t index : order) {
    Buffer& buffer = buffers_[index];
    buffer.offset = 0;
    for (const Buffer* other : placed) {
      if (other->last_stage < buffer.first_stage || buffer.last_stage < other->first_stage)
        continue;
      if (buffer.offset + buffer.num_bytes <= other->offset) break;
      buffer.offset = std::max(buffer.offset, other->offset + other->num_bytes);
    }
    const auto above = std::find_if(placed.begin(), placed.end(), [&](const Buffer* other) {
      return other->offset > buffer.offset;
    });
    placed.insert(above, &buffer);
  }
}

void Program::run(const Step& step) {
  assert(step.num_tokens <= max_rows_ && step.num_logits <= max_rows_);
  const std::lock_guard<std::mutex> lock(run_mutex_);
  if (output_ >= 0) {
    buffers_[static_cast<std::size_t>(output_)].data = reinterpret_cast<std::byte*>(step.output);
  }
  for (const auto& prepare : preparations_) prepare(step);
  auto task = [&](Worker& worker) { run_stages(step, worker); };
  if (is_small(step)) {
    pool_->run_alone(task);
  } else {
    pool_->run(task);
  }
}

bool Program::is_small(const Step& step) const {
  // Of one matrix, by one thread.
  constexpr std::size_t kRowsThatCostAsMuchAsReading = 8;
  const auto num_tokens = static_cast<std::size_t>(step.num_tokens);
  return weight_bytes_ * (1 + num_tokens / kRowsThatCostAsMuchAsReading) < small_step_bytes_;
}

void Program::run_stages(const Step& step, Worker& worker) const {
  double* seconds = worker.index() == 0 ? step.stage_seconds : nullptr;
  double begin = seconds != nullptr ? seconds_now() : 0.0;
  Prefetcher prefetcher;
  for (const Stage& stage : stages_) {
    prefetcher.turn_to(stage.next_stream, worker);
    worker.parallel_for(
        stage.num_items(step), stage.grain(step),
        [&](std::int64_t first, std::int64_t last) {
          const Share share{first, last, worker.index()};
          for (const Phase& phase : stage.phases) phase.run(step, share);
        },
        prefetcher);
    if (seconds != nullptr) {
      const double end = seconds_now();
      *seconds++ = end - begin;
      begin = end;
    }
  }
}

}  // namespace pellucid
