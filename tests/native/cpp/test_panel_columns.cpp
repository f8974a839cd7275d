// Rows of a matrix become the columns of a panel: where each cell goes, what is beyond a row's end,
// and what is prefetched, which no result shows.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "check.h"

namespace {

const std::uint8_t* first_row;
std::vector<std::int64_t> fetched;  // bytes from the first row on

void note_address(const void* address) {
  fetched.push_back(static_cast<const std::uint8_t*>(address) - first_row);
}

}  // namespace

#define __builtin_prefetch(address) note_address(address)
#include "panel_columns.h"

namespace {

using namespace pellucid;

// Two tiles of steps, or less, with a gap behind each.
template <class Cell>
void rows_become_columns(std::int64_t row_bytes, std::int64_t num_rows) {
  constexpr std::int64_t kCellBytes = sizeof(Cell), kStepBytes = kPanelOutputs * kCellBytes;
  constexpr std::int64_t kTileSteps = 24, kTileBytes = kTileSteps * kStepBytes + 40;
  const std::int64_t num_cells = (row_bytes + kCellBytes - 1) / kCellBytes;
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(row_bytes * num_rows + 64), 0xff);
  for (std::int64_t i = 0; i < row_bytes * num_rows; ++i) {
    rows[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(1 + i % 251);
  }
  std::vector<std::uint8_t> wanted(static_cast<std::size_t>(16 + 3 * kTileBytes), 0);
  const auto complement = [](Cell cell) { return static_cast<Cell>(~cell); };
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t i = 0; i < num_cells; ++i) {
      Cell cell = 0;
      std::memcpy(&cell, rows.data() + row * row_bytes + i * kCellBytes,
                  static_cast<std::size_t>(std::min(kCellBytes, row_bytes - i * kCellBytes)));
      cell = complement(cell);
      std::memcpy(wanted.data() + 16 + i / kTileSteps * kTileBytes + i % kTileSteps * kStepBytes +
                      row * kCellBytes,
                  &cell, sizeof(cell));
    }
  }
  std::vector<std::uint8_t> packed(wanted.size(), 0);
  first_row = rows.data();
  fetched.clear();
  rows_to_columns<Cell>(rows.data(), row_bytes, num_rows, {16, kTileSteps, kTileBytes},
                        packed.data(), complement);
  CHECK(packed == wanted);
  std::vector<std::int64_t> lines;  // of all rows, eight lines ahead
  for (std::int64_t begin = 0; begin < row_bytes; begin += 64) {
    for (std::int64_t row = 0; row < num_rows; ++row) {
      lines.push_back(row * row_bytes + begin + 8 * 64);
    }
  }
  CHECK(fetched == lines);
}

}  // namespace

int main() {
  for (const std::int64_t num_rows : {1, 31, 32}) {
    for (const std::int64_t row_bytes : {1, 4, 6, 63, 64, 65, 128, 130}) {
      rows_become_columns<std::uint32_t>(row_bytes, num_rows);
      rows_become_columns<std::uint16_t>(row_bytes / 2 * 2, num_rows);
    }
    rows_become_columns<std::uint8_t>(70, num_rows);
  }
  std::printf("ok\n");
}
