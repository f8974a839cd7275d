// Builds a program: phases, stages and segments, and the plan of its memory.
#include "program.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "memory_units.h"
#include "require.h"
#include "rounding.h"

namespace pellucid {
namespace {

constexpr std::int64_t kLineFloats = static_cast<std::int64_t>(kCacheLine / sizeof(float));
// Limits with which no product of sizes exceeds 64 bits.
constexpr std::int64_t kMaxRows = 1 << 24, kMaxWidth = 1 << 28;
constexpr std::int64_t kMaxRowsPerGrab = 16;  // a row is still in the cache in the next phase

}  // namespace

Program::Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool,
                 std::int64_t max_rows, std::size_t small_step_bytes)
    : kernels_(kernels),
      pool_(std::move(pool)),
      max_rows_(max_rows),
      small_step_bytes_(small_step_bytes) {
  require(max_rows >= 1 && max_rows <= kMaxRows, "max_rows=", max_rows, ": allowed are 1 to ",
          kMaxRows);
}

void Program::check_open() const {
  require(!is_finished_, "the program is finished: nothing can be added");
}

int Program::add(const Buffer& buffer) {
  check_open();
  buffers_.push_back(buffer);
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_buffer(RowSet rows, std::int64_t width) {
  require(width >= 1 && width <= kMaxWidth, "width=", width, ": allowed are 1 to ", kMaxWidth);
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
  check_open();
  preparations_.push_back(std::move(prepare));
}

void Program::add_conclusion(std::function<void(const Step&)> conclude) {
  check_open();
  conclusions_.push_back(std::move(conclude));
}

void Program::check_view(const char* name, View view, RowSet rows, std::int64_t width) const {
  require(view.buffer >= 0 && view.buffer < static_cast<int>(buffers_.size()), name,
          ": the program has no buffer ", view.buffer);
  const Buffer& buffer = buffers_[static_cast<std::size_t>(view.buffer)];
  require(buffer.rows == rows, name, ": buffer ", view.buffer, " has other rows than the op");
  require(view.column >= 0 && width >= 1 && width <= buffer.width - view.column, name, ": buffer ",
          view.buffer, " has ", buffer.width, " columns, not ", width, " from ", view.column,
          " on");
}

Program::Stage& Program::add_stage(Segment& segment) {
  ++num_stages_;
  return segment.stages.emplace_back();
}

// The segment of the next stage that computes row by row.
Program::Segment& Program::segment_by_row(RowSet rows) {
  if (segments_.empty() || !segments_.back().is_by_row || segments_.back().rows != rows) {
    segments_.push_back({true, rows, {}, num_stages_});
  }
  return segments_.back();
}

void Program::add_row_phase(std::string name, RowSet rows, std::vector<int> buffers,
                            RunRow run_row) {
  check_open();
  Segment& segment = segment_by_row(rows);
  if (segment.stages.empty() || !segment.stages.back().has_row_items) {
    const std::int64_t grabs_per_thread = 4;
    const std::int64_t grabs = grabs_per_thread * max_threads();
    Stage& stage = add_stage(segment);
    stage.has_row_items = true;
    stage.num_items = [rows](const Step& step) { return step.num_rows(rows); };
    stage.grain = [rows, grabs](const Step& step) {
      return std::clamp<std::int64_t>(step.num_rows(rows) / grabs, 1, kMaxRowsPerGrab);
    };
  }
  Run run = [run_row = std::move(run_row)](const Step& step, const Share& share) {
    for (std::int64_t row = share.begin; row < share.end; ++row) run_row(step, row);
  };
  segment.stages.back().phases.push_back({std::move(name), std::move(run), nullptr});
  use(buffers);
}

void Program::add_column_phase(std::string name, RowSet rows, std::vector<int> buffers,
                               Stream stream, ColumnGrain grain, RunBlock run_block) {
  check_open();
  const std::int64_t num_columns = stream.num_items;
  Segment& segment = segment_by_row(rows);
  segment.rows_per_block = std::max(segment.rows_per_block, grain.rows_per_block);
  Stage& stage = add_stage(segment);
  stage.num_items = [rows, num_columns](const Step& step) {
    return step.num_rows(rows) > 0 ? num_columns : 0;
  };
  stage.grain = [grain](const Step&) { return grain.of_few_rows; };
  stage.piece_columns = grain.of_row_block;
  stage.num_pieces = static_cast<std::uint32_t>(ceil_div(num_columns, grain.of_row_block));
  stage.stream = stream;
  if (stream.data != nullptr) {
    stage.find_weights = [stream](const Step&, const Worker& worker) {
      return WeightSpan{stream.data + worker.share_begin(stream.num_items) * stream.item_bytes,
                        stream.num_items * stream.item_bytes / worker.num_threads()};
    };
  }
  Run run = [rows, run_block](const Step& step, const Share& share) {
    run_block(step, {0, step.num_rows(rows)}, {share.begin, share.end});
  };
  stage.phases.push_back({std::move(name), std::move(run), std::move(run_block)});
  use(buffers);
}

void Program::add_phase(std::string name, std::vector<int> buffers, Count num_items, Count grain,
                        Run run, FindWeights find_weights) {
  check_open();
  segments_.push_back({false, RowSet::kTokens, {}, num_stages_});
  Stage& stage = add_stage(segments_.back());
  stage.num_items = std::move(num_items);
  stage.grain = std::move(grain);
  stage.find_weights = std::move(find_weights);
  stage.phases.push_back({std::move(name), std::move(run), nullptr});
  use(buffers);
}

void Program::use(const std::vector<int>& buffers) {
  const int segment = static_cast<int>(segments_.size()) - 1;
  for (const int index : buffers) {
    Buffer& buffer = buffers_[static_cast<std::size_t>(index)];
    buffer.first_segment = std::min(buffer.first_segment, segment);
    buffer.last_segment = std::max(buffer.last_segment, segment);
  }
}

void Program::set_output(int buffer) {
  check_open();
  require(buffer >= 0 && buffer < static_cast<int>(buffers_.size()) &&
              buffers_[static_cast<std::size_t>(buffer)].width > 0,
          "output: the program has no buffer ", buffer);
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
  for (const Segment& segment : segments_) {
    for (const Stage& stage : segment.stages) {
      std::string name;
      for (const Phase& phase : stage.phases) name += (name.empty() ? "" : " + ") + phase.name;
      names.push_back(std::move(name));
    }
  }
  return names;
}

void Program::finish() {
  check_open();
  is_finished_ = true;
  const FindWeights* next = nullptr;
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    for (auto stage = segment->stages.rbegin(); stage != segment->stages.rend(); ++stage) {
      stage->next_weights = next;
      if (stage->find_weights) next = &stage->find_weights;
    }
  }
  place_buffers();
  for (const Buffer& buffer : buffers_) {
    arena_bytes_ = std::max(arena_bytes_, buffer.offset + buffer.num_bytes);
  }
  if (is_plan_) return;
  arena_ = AlignedBuffer(arena_bytes_);
  for (Buffer& buffer : buffers_) buffer.data = arena_.data() + buffer.offset;
  row_blocks_ = std::make_unique<RowBlock[]>(max_row_blocks());
}

// Places buffers in the arena, the largest first, each at the lowest address that no buffer of the
// same segments has.
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
      if (other->last_segment < buffer.first_segment || buffer.last_segment < other->first_segment)
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

}  // namespace pellucid
