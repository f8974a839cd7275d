// A decoder's forward as a flat list of phases over buffers of rows: planned once, then run as one
// call per step, without Python, allocation or a decision in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aligned_buffer.h"
#include "kernel_table.h"
#include "largest.h"
#include "row_block.h"
#include "thread_pool.h"

namespace pellucid {

class KVCache;
struct Draw;

// An array of rows that the caller owns.
struct ConstRows {
  const float* data;
  std::int64_t num_rows;
  std::int64_t width;
};

// Which rows a buffer has, and a phase works on.
enum class RowSet : std::uint8_t {
  kTokens,  // T
  kLogits,  // R
};

// The tokens to draw from one row of logits.
struct RowDraws {
  std::int64_t row;
  const Draw* draws;  // [count]
  std::int64_t count;
  std::int64_t* tokens;  // [count], is filled
};

// What differs from step to step: the arrays of `ForwardBatch` (backends/ops.py), borrowed.
struct Step {
  std::int64_t num_tokens = 0;                   // T
  std::int64_t num_requests = 0;                 // B
  std::int64_t num_logits = 0;                   // R
  std::int64_t max_blocks = 0;                   // columns of block_tables
  const std::int32_t* token_ids = nullptr;       // [T]
  const std::int32_t* positions = nullptr;       // [T]
  const std::int64_t* slot_mapping = nullptr;    // [T]
  const std::int32_t* query_start = nullptr;     // [B + 1]
  const std::int32_t* seq_lens = nullptr;        // [B]
  const std::int32_t* block_tables = nullptr;    // [B, max_blocks]
  const std::int32_t* logits_indices = nullptr;  // [R]
  std::vector<ConstRows> frequencies;  // per rotation: radians per position [1 or T, dim / 2]
  std::vector<ConstRows> inputs;       // per input: [T, width]
  KVCache* kv_cache = nullptr;
  float* output = nullptr;          // [rows, width] of the program's output
  LargestMark* largest = nullptr;   // [R], zeros: told where logits are largest; or null
  std::vector<RowDraws> draws;      // one for each row that has any
  double* stage_seconds = nullptr;  // [num_stages], or null: nobody looks

  std::int64_t num_rows(RowSet rows) const {
    return rows == RowSet::kTokens ? num_tokens : num_logits;
  }
};

// Columns of a buffer, from `column` on.
struct View {
  int buffer;
  std::int64_t column = 0;
};

// Items of a phase for one thread.
struct Share {
  std::int64_t begin;
  std::int64_t end;
  int thread;
};

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// What the items of a phase read first, one after the other: weights.
struct Stream {
  const std::uint8_t* data = nullptr;
  std::int64_t item_bytes = 0;
  std::int64_t num_items = 0;
};

class Program {
 public:
  using Run = std::function<void(const Step&, const Share&)>;
  using RunRow = std::function<void(const Step&, std::int64_t row)>;
  using RunBlock = std::function<void(const Step&, Range rows, Range columns)>;
  using Count = std::function<std::int64_t(const Step&)>;

  // For steps of at most `max_rows` tokens, of which as many rows of logits are wanted. Those that
  // read fewer bytes of weights than `small_step_bytes` stay on the caller's thread. The table and
  // the pool outlive the program.
  Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool, std::int64_t max_rows,
          std::size_t small_step_bytes);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // -- building: std::invalid_argument for what cannot be run ------------------------------------

  // Rows of `width` floats; rows of no other buffer share their memory while phases use it.
  int add_buffer(RowSet rows, std::int64_t width);

  // Bytes, aligned to cache lines, that only the phases naming it use.
  int add_scratch(std::size_t num_bytes);

  // Before everything else, on the caller's thread.
  void add_preparation(std::function<void(const Step&)> prepare);

  // A phase whose items are rows and which touches no other row of any buffer than its own. Such
  // phases, one after the other, run without a barrier between them.
  void add_row_phase(std::string name, RowSet rows, std::vector<int> buffers, RunRow run_row);

  // A phase that computes each row from that row alone, in units of columns which read weights one
  // after the other, `stream`. A step of few rows shares the columns out, `grain` at a time, so
  // that weights are read once, and threads that wait for others before it fetch the beginning of
  // theirs into their caches. In a step of many rows each thread takes its rows through all such
  // phases that follow each other, and helps others with theirs in the end: weights are read by
  // every thread, but what lies between phases stays in its caches, and nobody waits.
  void add_column_phase(std::string name, RowSet rows, std::vector<int> buffers, Stream stream,
                        std::int64_t grain, RunBlock run);

  // A phase of its own items: num_items(step), handed out `grain(step)` at a time.
  void add_phase(std::string name, std::vector<int> buffers, Count num_items, Count grain, Run run);

  // Bytes of weights that each step reads: says whether a step is worth waking threads for.
  void add_weight_bytes(std::size_t num_bytes) { weight_bytes_ += num_bytes; }

  // Memory that phases hold beside the buffers, for `scratch_bytes`.
  void add_own_bytes(std::size_t num_bytes) { own_bytes_ += num_bytes; }

  // Throws std::invalid_argument, with `name`, if `view` is not `width` columns of a buffer of such
  // rows.
  void check_view(const char* name, View view, RowSet rows, std::int64_t width) const;

  // The buffer that the caller gets, if any; it lies in the caller's memory.
  void set_output(int buffer);

  // Plans the memory. Nothing can be added afterwards.
  void finish();

  // -- running ----------------------------------------------------------------------------------

  // Callers on several threads take turns. Throws std::invalid_argument, before anything is run, if
  // the program is not finished, or the step has more rows than it was made for or lacks what a
  // phase reads; std::runtime_error in a process forked off the one that made the pool.
  void run(const Step& step);

  const KernelTable& kernels() const { return kernels_; }
  std::int64_t max_rows() const { return max_rows_; }
  int max_threads() const { return pool_->max_threads(); }
  std::size_t scratch_bytes() const { return arena_.size() + own_bytes_; }
  std::int64_t output_width() const;
  RowSet output_rows() const;
  // Of what threads share out at a time.
  std::vector<std::string> stage_names() const;

  float* row(View view, std::int64_t index) const {
    const Buffer& buffer = buffers_[static_cast<std::size_t>(view.buffer)];
    return reinterpret_cast<float*>(buffer.data) + index * buffer.stride + view.column;
  }
  std::int64_t stride(View view) const {
    return buffers_[static_cast<std::size_t>(view.buffer)].stride;
  }
  std::byte* scratch(int buffer) const { return buffers_[static_cast<std::size_t>(buffer)].data; }

 private:
  struct Buffer {
    RowSet rows;
    std::int64_t width;   // floats
    std::int64_t stride;  // floats between rows
    std::size_t num_bytes;
    int first_segment;
    int last_segment;
    std::size_t offset = 0;
    std::byte* data = nullptr;
  };
  struct Phase {
    std::string name;
    Run run;             // a share of the stage's items
    RunBlock run_block;  // some columns of some rows, where the items are columns
  };
  // What runs between two barriers, if threads share out something else than rows.
  struct Stage {
    bool has_row_items;
    Count num_items;
    Count grain;
    std::uint32_t num_pieces;  // `grain` columns each
    std::vector<Phase> phases;
    Stream stream;
    Stream next_stream;  // of the first stage behind this one that has any
  };
  // Stages that rows may go through one thread each; or one stage that needs the rows of others.
  struct Segment {
    bool is_by_row;
    RowSet rows;
    std::vector<Stage> stages;
    std::uint32_t first_stage;  // counted over all segments

    std::uint32_t end_stage() const {
      return first_stage + static_cast<std::uint32_t>(stages.size());
    }
  };

  class Stopwatch;
  class RowBlocks;

  void check_open() const;
  bool is_small(const Step& step) const;
  void run_segments(const Step& step, Worker& worker) const;
  std::size_t max_row_blocks() const;
  Stage& add_stage(Segment& segment);
  Segment& segment_by_row(RowSet rows);
  int add(const Buffer& buffer);
  void use(const std::vector<int>& buffers);
  void place_buffers();

  const KernelTable& kernels_;
  const std::shared_ptr<ThreadPool> pool_;
  const std::int64_t max_rows_;
  const std::size_t small_step_bytes_;
  std::vector<Buffer> buffers_;
  std::vector<std::function<void(const Step&)>> preparations_;
  std::vector<Segment> segments_;
  std::uint32_t num_stages_ = 0;  // of all segments
  AlignedBuffer arena_;
  std::size_t weight_bytes_ = 0;
  std::size_t own_bytes_ = 0;
  int output_ = -1;
  bool is_finished_ = false;
  std::unique_ptr<RowBlock[]> row_blocks_;
  std::mutex run_mutex_;
};

}  // namespace pellucid
