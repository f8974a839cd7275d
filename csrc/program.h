// Program: a decoder's forward as a flat list of phases over buffers of rows. It is planned once.
// Then each step is one call, without Python code and without allocation.
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
struct OpenGroups;
struct Draw;

// An array of rows that the caller owns.
struct ConstRows {
  const float* data;
  std::int64_t num_rows;
  std::int64_t width;
};

// The rows that a buffer has and a phase computes.
enum class RowSet : std::uint8_t {
  kTokens,  // T
  kLogits,  // R
};

// The tokens to draw from one row of logits.
struct RowDraws {
  std::int64_t row;
  const Draw* draws;  // [count]
  std::int64_t count;
  std::int64_t* tokens;  // [count], the drawn tokens
};

// The arguments of one step: the arrays of `ForwardBatch` (backends/ops.py), borrowed.
struct Step {
  std::int64_t num_tokens = 0;                   // T
  std::int64_t num_requests = 0;                 // B
  std::int64_t num_logits = 0;                   // R
  std::int64_t num_groups = 1;                   // G, of layers that share block tables
  std::int64_t max_blocks = 0;                   // columns of block_tables
  const std::int32_t* token_ids = nullptr;       // [T]
  const std::int32_t* positions = nullptr;       // [T]
  const std::int64_t* slot_mapping = nullptr;    // [G, T]
  const std::int32_t* query_start = nullptr;     // [B + 1]
  const std::int32_t* seq_lens = nullptr;        // [B]
  const std::int32_t* block_tables = nullptr;    // [G, B, max_blocks]
  const std::int32_t* logits_indices = nullptr;  // [R]
  std::vector<ConstRows> frequencies;  // per rotation: radians per position [1 or T, dim / 2]
  std::vector<ConstRows> inputs;       // per input: [T, width]
  KVCache* kv_cache = nullptr;
  float* states = nullptr;  // [slots, state_width]: recurrent states; or null
  std::int64_t state_width = 0;
  const std::int32_t* state_slots = nullptr;  // [B]
  const OpenGroups* open_groups = nullptr;    // [B], of caches with open keys
  float* output = nullptr;                    // [rows, width] of the program's output
  LargestMark* largest = nullptr;        // [R], zeros: set to the largest logits' columns; or null
  std::vector<RowDraws> draws;           // one for each row that has any
  double* stage_seconds = nullptr;       // [num_stages], or null: stages are not timed
  std::int64_t* expert_bytes = nullptr;  // bytes of experts' weights that are read; or null

  std::int64_t num_rows(RowSet rows) const {
    return rows == RowSet::kTokens ? num_tokens : num_logits;
  }
  // [T] of one group.
  const std::int64_t* slots(std::int64_t group) const { return slot_mapping + group * num_tokens; }
  // [B, max_blocks] of one group.
  const std::int32_t* tables(std::int64_t group) const {
    return block_tables + group * num_requests * max_blocks;
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

// The memory that the items of a phase read first, one after the other: weights.
struct Stream {
  const std::uint8_t* data = nullptr;
  std::int64_t item_bytes = 0;
  std::int64_t num_items = 0;
};

// How many columns a thread takes at a time.
struct ColumnGrain {
  std::int64_t of_few_rows;   // in a step of few rows
  std::int64_t of_row_block;  // in a step of many rows, where threads help each other
  std::int64_t rows_per_block = kRowsPerBlock;  // the most, in a step of many rows
};

// Weights that a thread reads one after the other.
struct WeightSpan {
  const std::uint8_t* data = nullptr;
  std::int64_t num_bytes = 0;
};

class Program {
 public:
  using Run = std::function<void(const Step&, const Share&)>;
  using RunRow = std::function<void(const Step&, std::int64_t row)>;
  using RunBlock = std::function<void(const Step&, Range rows, Range columns)>;
  using Count = std::function<std::int64_t(const Step&)>;
  using FindWeights = std::function<WeightSpan(const Step&, const Worker&)>;

  // For steps of at most `max_rows` tokens and `max_rows` rows of logits. A step that reads fewer
  // bytes of weights than `small_step_bytes` runs on the caller's thread alone. The table must
  // outlive the program.
  Program(const KernelTable& kernels, std::shared_ptr<ThreadPool> pool, std::int64_t max_rows,
          std::size_t small_step_bytes);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // -- building: throws std::invalid_argument for operands that do not fit ------------------------

  // Adds a buffer of rows of `width` floats. Buffers that no phase uses at the same time share
  // memory.
  int add_buffer(RowSet rows, std::int64_t width);

  // Adds `num_bytes` of scratch, aligned to cache lines, for the phases that name it.
  int add_scratch(std::size_t num_bytes);

  // Adds a function that each step calls first, on the caller's thread.
  void add_preparation(std::function<void(const Step&)> prepare);

  // Adds a function that each step calls last, on the caller's thread. It may throw.
  void add_conclusion(std::function<void(const Step&)> conclude);

  // Adds a phase whose items are rows, and whose row i reads and writes only rows i of its buffers.
  // Consecutive phases of this kind run without a barrier between them.
  void add_row_phase(std::string name, RowSet rows, std::vector<int> buffers, RunRow run_row);

  // Adds a phase that computes each row from that row alone, in units of columns, each of which
  // reads its weights from `stream`, if that has any.
  //
  // In a step of few rows the threads share the columns, so that weights are read once; a thread
  // that waits at the barrier before the phase prefetches the beginning of its weights. In a step
  // of many rows each thread takes its own rows through all consecutive phases of this kind, and at
  // the end helps the others with theirs: every thread reads all weights, but the activations
  // between phases stay in its caches, and there is no barrier.
  void add_column_phase(std::string name, RowSet rows, std::vector<int> buffers, Stream stream,
                        ColumnGrain grain, RunBlock run);

  // Adds a phase with items of its own: num_items(step), which threads take `grain(step)` at a
  // time. Threads that wait before it prefetch the weights that find_weights returns, if it is
  // given; they call it once the phase before has begun.
  void add_phase(std::string name, std::vector<int> buffers, Count num_items, Count grain, Run run,
                 FindWeights find_weights = nullptr);

  // Adds to the bytes of weights that each step reads, from which a step's size is estimated.
  void add_weight_bytes(std::size_t num_bytes) { weight_bytes_ += num_bytes; }

  // Adds to `scratch_bytes` the memory that a phase allocates by itself.
  void add_own_bytes(std::size_t num_bytes) { own_bytes_ += num_bytes; }

  // Throws std::invalid_argument that begins with `name`, unless `view` is `width` columns of a
  // buffer with these rows.
  void check_view(const char* name, View view, RowSet rows, std::int64_t width) const;

  // Makes a buffer the program's output: its rows are written to `Step::output`.
  void set_output(int buffer);

  // Makes this a plan: its weights have no memory, so `finish` allocates none and `run` throws.
  void only_plan() { is_plan_ = true; }

  // Plans the memory. Nothing can be added afterwards.
  void finish();

  // -- running ----------------------------------------------------------------------------------

  // Runs a step. Callers on several threads take turns. Throws std::invalid_argument, before
  // anything is computed, if the program is not finished or only a plan, if the step has more rows
  // than the program was made for, or if the step lacks an array that a phase reads. Throws
  // std::runtime_error in a process forked off the one that made the pool, and what a conclusion
  // throws.
  void run(const Step& step);

  const KernelTable& kernels() const { return kernels_; }
  std::int64_t max_rows() const { return max_rows_; }
  int max_threads() const { return pool_->max_threads(); }
  std::size_t scratch_bytes() const { return arena_bytes_ + own_bytes_; }
  std::int64_t output_width() const;
  RowSet output_rows() const;
  // The names of the stages, in order: "phase + phase" where a stage has several phases.
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
    Run run;             // computes a share of the stage's items
    RunBlock run_block;  // computes some columns of some rows, where the items are columns
  };
  // Consecutive phases with the same items. Where threads share columns or items, barriers separate
  // stages.
  struct Stage {
    bool has_row_items;
    Count num_items;
    Count grain;
    std::int64_t piece_columns;  // of a block of rows
    std::uint32_t num_pieces;    // of a block of rows
    std::vector<Phase> phases;
    Stream stream;
    FindWeights find_weights;
    const FindWeights* next_weights;  // of the first stage behind this one that has any; or null
  };
  // Either consecutive stages through which a thread can take its own rows without a barrier
  // (is_by_row), or one stage with items of its own.
  struct Segment {
    bool is_by_row;
    RowSet rows;
    std::vector<Stage> stages;
    std::uint32_t first_stage;                    // counted over all segments
    std::int64_t rows_per_block = kRowsPerBlock;  // the most that one of its phases takes

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
  std::vector<std::function<void(const Step&)>> conclusions_;
  std::vector<Segment> segments_;
  std::uint32_t num_stages_ = 0;  // of all segments
  std::size_t arena_bytes_ = 0;
  AlignedBuffer arena_;
  std::size_t weight_bytes_ = 0;
  std::size_t own_bytes_ = 0;
  int output_ = -1;
  bool is_finished_ = false;
  bool is_plan_ = false;
  std::unique_ptr<RowBlock[]> row_blocks_;
  std::mutex run_mutex_;
};

}  // namespace pellucid
