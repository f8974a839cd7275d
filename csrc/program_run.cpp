// Runs a step of a program: which thread runs which rows and columns, and where threads wait for
// each other.
#include <algorithm>

#include "clock.h"
#include "program.h"
#include "require.h"
#include "rounding.h"
#include "weight_prefetcher.h"

namespace pellucid {
namespace {

// Whether each thread takes its rows through all weights. That pays where computing takes longer
// than reading the weights. The more threads read, the slower each of them reads.
bool goes_by_row(std::int64_t num_rows, std::int64_t num_threads) {
  constexpr std::int64_t kRowsPerReader = 8;
  return num_rows >= kRowsPerReader * num_threads * num_threads;
}

// The number of blocks: the same for each thread.
std::int64_t count_row_blocks(std::int64_t num_rows, std::int64_t rows_per_block,
                              std::int64_t num_threads) {
  return num_threads * ceil_div(num_rows, rows_per_block * num_threads);
}

}  // namespace

// Adds up the time of each stage, if the step asks for it.
class Program::Stopwatch {
 public:
  explicit Stopwatch(double* stage_seconds)
      : stage_seconds_(stage_seconds), begin_(stage_seconds == nullptr ? 0.0 : seconds_now()) {}

  void end_stage(std::uint32_t stage) {
    if (stage_seconds_ == nullptr) return;
    const double end = seconds_now();
    stage_seconds_[stage] += end - begin_;
    begin_ = end;
  }

 private:
  double* const stage_seconds_;
  double begin_;
};

// One thread's work on a segment by row: its own blocks of rows, then helping with those of others.
class Program::RowBlocks {
 public:
  RowBlocks(const Segment& segment, const Step& step, const Worker& worker, RowBlock* blocks)
      : segment_(segment),
        step_(step),
        thread_(worker.index()),
        num_rows_(step.num_rows(segment.rows)),
        num_blocks_(count_row_blocks(num_rows_, segment.rows_per_block, worker.num_threads())),
        blocks_(blocks),
        end_stage_(segment.end_stage()) {}

  std::int64_t size() const { return num_blocks_; }

  // Takes a block through all stages.
  void own(std::int64_t index, Stopwatch& stopwatch) {
    RowBlock& block = blocks_[index];
    for (std::uint32_t s = segment_.first_stage; s < end_stage_; ++s) {
      const Stage& stage = stage_at(s);
      if (stage.has_row_items) {
        const Range rows = rows_of(index);
        for (const Phase& phase : stage.phases) phase.run(step_, {rows.begin, rows.end, thread_});
      } else {
        block.open(s);
        while (run_piece(index)) {
        }
        block.wait_for(stage.num_pieces);
      }
      stopwatch.end_stage(s);
    }
    block.close(end_stage_);
  }

  // Runs a piece of another thread's columns, if there is one; false when all blocks are done.
  bool help() {
    bool is_done = true;
    for (std::int64_t index = 0; index < num_blocks_; ++index) {
      if (run_piece(index)) {
        patience_ = {};
        return true;
      }
      is_done = is_done && blocks_[index].stage() >= end_stage_;
    }
    if (!is_done) patience_.wait();
    return !is_done;
  }

 private:
  const Stage& stage_at(std::uint32_t index) const {
    return segment_.stages[index - segment_.first_stage];
  }

  Range rows_of(std::int64_t block) const {
    return {num_rows_ * block / num_blocks_, num_rows_ * (block + 1) / num_blocks_};
  }

  bool run_piece(std::int64_t index) {
    const auto piece =
        blocks_[index].take(segment_.first_stage, end_stage_,
                            [&](std::uint32_t stage) { return stage_at(stage).num_pieces; });
    if (!piece) return false;
    const Stage& stage = stage_at(piece->stage);
    const std::int64_t begin = piece->number * stage.piece_columns;
    const Range columns{begin, std::min(begin + stage.piece_columns, stage.stream.num_items)};
    for (const Phase& phase : stage.phases) phase.run_block(step_, rows_of(index), columns);
    blocks_[index].finish_piece();
    return true;
  }

  const Segment& segment_;
  const Step& step_;
  const int thread_;
  const std::int64_t num_rows_;
  const std::int64_t num_blocks_;
  RowBlock* const blocks_;
  const std::uint32_t end_stage_;
  Patience patience_;
};

// The most that `count_row_blocks` gives for any number of threads up to max_threads().
std::size_t Program::max_row_blocks() const {
  return static_cast<std::size_t>((max_rows_ - 1) / kRowsPerBlock + max_threads());
}

void Program::run(const Step& step) {
  require(is_finished_, "the program is not finished");
  require(!is_plan_, "the program is only a plan: its weights have no memory");
  require(step.num_tokens <= max_rows_, "token_ids: has ", step.num_tokens,
          " rows, the program was made for ", max_rows_);
  require(step.num_logits <= max_rows_, "logits_indices: has ", step.num_logits,
          " rows, the program was made for ", max_rows_);
  // Before the lock: in a forked child a thread of the parent may have held it.
  pool_->require_own_process();
  const std::lock_guard<std::mutex> lock(run_mutex_);
  if (output_ >= 0) {
    buffers_[static_cast<std::size_t>(output_)].data = reinterpret_cast<std::byte*>(step.output);
  }
  if (step.stage_seconds != nullptr) std::fill_n(step.stage_seconds, num_stages_, 0.0);
  for (std::size_t i = 0; i < max_row_blocks(); ++i) row_blocks_[i].close(0);
  for (const auto& prepare : preparations_) prepare(step);
  auto task = [&](Worker& worker) { run_segments(step, worker); };
  if (is_small(step)) {
    pool_->run_alone(task);
  } else {
    pool_->run(task);
  }
  for (const auto& conclude : conclusions_) conclude(step);
}

bool Program::is_small(const Step& step) const {
  // Of one matrix, by one thread.
  constexpr std::size_t kRowsThatCostAsMuchAsReading = 8;
  const auto num_tokens = static_cast<std::size_t>(step.num_tokens);
  return weight_bytes_ * (1 + num_tokens / kRowsThatCostAsMuchAsReading) < small_step_bytes_;
}

void Program::run_segments(const Step& step, Worker& worker) const {
  Stopwatch stopwatch(worker.index() == 0 ? step.stage_seconds : nullptr);
  WeightPrefetcher prefetcher;
  for (const Segment& segment : segments_) {
    if (segment.is_by_row && goes_by_row(step.num_rows(segment.rows), worker.num_threads())) {
      RowBlocks blocks(segment, step, worker, row_blocks_.get());
      worker.parallel_for(
          blocks.size(), 1, [&](std::int64_t index, std::int64_t) { blocks.own(index, stopwatch); },
          [&] { return blocks.help(); });
      stopwatch.end_stage(segment.end_stage() - 1);  // the time of helping and waiting
      continue;
    }
    std::uint32_t index = segment.first_stage;
    for (const Stage& stage : segment.stages) {
      if (stage.num_items(step) == 0) {  // no barrier for a stage without items
        stopwatch.end_stage(index++);
        continue;
      }
      prefetcher.turn_to(stage.next_weights ? (*stage.next_weights)(step, worker) : WeightSpan{});
      worker.parallel_for(
          stage.num_items(step), stage.grain(step),
          [&](std::int64_t first, std::int64_t last) {
            for (const Phase& phase : stage.phases) phase.run(step, {first, last, worker.index()});
          },
          prefetcher);
      stopwatch.end_stage(index++);
    }
  }
}

}  // namespace pellucid
