// Transposes rows into the columns of a panel (packed_matrix.h). Packing consists of nothing else,
// so it runs at the speed of memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "format.h"
#include "memory_units.h"
#include "shuffle.h"

namespace pellucid {

// Where steps of 32 columns stand in a packed matrix.
struct StepPlaces {
  std::int64_t begin;       // byte of the first step
  std::int64_t tile_steps;  // that lie side by side
  std::int64_t tile_bytes;  // from a tile's first step to the next tile's
};

// Walks along steps of `step_bytes` each.
class StepCursor {
 public:
  StepCursor(const StepPlaces& places, std::int64_t step_bytes)
      : places_(places), step_bytes_(step_bytes), place_(places.begin) {}

  // The byte of the next step.
  std::int64_t next() {
    const std::int64_t place = place_;
    place_ += step_bytes_;
    if (++step_ == places_.tile_steps) {
      step_ = 0;
      place_ += places_.tile_bytes - places_.tile_steps * step_bytes_;
    }
    return place;
  }

 private:
  const StepPlaces places_;
  const std::int64_t step_bytes_;
  std::int64_t place_;
  std::int64_t step_ = 0;
};

// steps[i][row] = lines[row][i].
template <class Cell, int kNumSteps>
void transpose(const Cell (&lines)[kPanelOutputs][kNumSteps],
               Cell (&steps)[kNumSteps][kPanelOutputs]) {
  for (int i = 0; i < kNumSteps; ++i) {
    for (int row = 0; row < kPanelOutputs; ++row) steps[i][row] = lines[row][i];
  }
}

// Four rows and four steps at a time; compilers do not generate this code from the loop above.
template <int kNumSteps>
void transpose(const std::uint32_t (&lines)[kPanelOutputs][kNumSteps],
               std::uint32_t (&steps)[kNumSteps][kPanelOutputs]) {
  typedef std::uint32_t Quad __attribute__((vector_size(16)));
  static_assert(kNumSteps % 4 == 0 && kPanelOutputs % 4 == 0, "whole squares");
  for (int i = 0; i < kNumSteps; i += 4) {
    for (int row = 0; row < kPanelOutputs; row += 4) {
      Quad in[4], pairs[4], out[4];
      for (int j = 0; j < 4; ++j) std::memcpy(&in[j], &lines[row + j][i], sizeof(Quad));
      pairs[0] = shuffle<0, 4, 1, 5>(in[0], in[1]);
      pairs[1] = shuffle<0, 4, 1, 5>(in[2], in[3]);
      pairs[2] = shuffle<2, 6, 3, 7>(in[0], in[1]);
      pairs[3] = shuffle<2, 6, 3, 7>(in[2], in[3]);
      out[0] = shuffle<0, 1, 4, 5>(pairs[0], pairs[1]);
      out[1] = shuffle<2, 3, 6, 7>(pairs[0], pairs[1]);
      out[2] = shuffle<0, 1, 4, 5>(pairs[2], pairs[3]);
      out[3] = shuffle<2, 3, 6, 7>(pairs[2], pairs[3]);
      for (int j = 0; j < 4; ++j) std::memcpy(&steps[i + j][row], &out[j], sizeof(Quad));
    }
  }
}

// Transposes up to 32 consecutive rows of `row_bytes` each into columns of cells, and applies
// `reorder` to each cell; columns without a row are zeros. The last cell may be longer than the
// rest of a row. Reads one cache line of each row at a time: where rows are a power of two apart,
// few lines fit into the first-level cache. Prefetches the lines behind, because the processor's
// own prefetcher does not follow 32 streams.
template <class Cell, class Reorder>
void rows_to_columns(const std::uint8_t* rows, std::int64_t row_bytes, std::int64_t num_rows,
                     const StepPlaces& places, std::uint8_t* packed, Reorder reorder) {
  constexpr std::int64_t kCellBytes = sizeof(Cell), kLineBytes = kCacheLine,
                         kAhead = 8 * kLineBytes;
  constexpr std::int64_t kLineCells = kLineBytes / kCellBytes;
  StepCursor cursor(places, kPanelOutputs * kCellBytes);
  Cell lines[kPanelOutputs][kLineCells] = {}, steps[kLineCells][kPanelOutputs];
  const auto move = [&](std::int64_t begin, auto num_bytes) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const std::uint8_t* const line = rows + row * row_bytes + begin;
      __builtin_prefetch(line + kAhead);
      std::memcpy(lines[row], line, static_cast<std::size_t>(num_bytes));
      for (Cell& cell : lines[row]) cell = reorder(cell);
    }
    transpose(lines, steps);
    const std::int64_t num_steps = (num_bytes + kCellBytes - 1) / kCellBytes;
    for (std::int64_t i = 0; i < num_steps; ++i) {
      std::memcpy(packed + cursor.next(), steps[i], sizeof(steps[i]));
    }
  };
  // With a constant size the compiler makes a copy a few instructions.
  using Line = std::integral_constant<std::int64_t, kLineBytes>;
  std::int64_t begin = 0;
  for (; begin + kLineBytes <= row_bytes; begin += kLineBytes) move(begin, Line{});
  if (begin < row_bytes) {
    std::memset(lines, 0, sizeof(lines));
    move(begin, row_bytes - begin);
  }
}

}  // namespace pellucid
