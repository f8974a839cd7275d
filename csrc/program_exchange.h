// Phases of a program in which processes exchange rows that they have computed together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "exchange.h"
#include "program.h"

namespace pellucid {

// Columns that a rank has computed.
struct RankColumns {
  int rank;
  std::int64_t column;
  std::int64_t width;
};

// Who holds which of a range of items: rank r has those from starts[r] to starts[r + 1].
struct Division {
  std::shared_ptr<Exchange> exchange;  // null: one process has all of them
  std::vector<std::int64_t> starts;    // [num_ranks + 1]

  bool is_divided() const { return exchange != nullptr; }
  // Throws std::invalid_argument unless `count` items are divided.
  void check(const char* name, std::int64_t count) const;
  std::int64_t own_begin() const;
  std::int64_t own_end() const;
  int rank_of(std::int64_t item) const;
};

// Exchanges rows of `width` floats through a piece of memory of a bounded size. The program's steps
// throw std::runtime_error when the exchange has failed.
class RowExchange {
 public:
  RowExchange(Program& program, std::shared_ptr<Exchange> exchange, std::int64_t width);

  // The scratch of the phase in which rows are exchanged.
  int scratch() const { return scratch_; }

  // row_at(i) is row i [width] of `num_rows`. for_each_part(i, f) calls f(RankColumns) for the
  // parts of row i that are exchanged, on all ranks in the same order. Within a step of the
  // program.
  template <class RowAt, class ForEachPart>
  void run(std::int64_t num_rows, RowAt row_at, ForEachPart for_each_part) const;

 private:
  Program& program_;
  std::shared_ptr<Exchange> exchange_;
  std::int64_t capacity_;  // floats
  std::int64_t rows_at_once_;
  int scratch_;
};

// Gives each rank all `parts` of y, columns from y's own on, of which it has computed those of its
// rank.
void add_exchange(Program& program, RowSet rows, View y, std::shared_ptr<Exchange> exchange,
                  std::vector<RankColumns> parts);

template <class RowAt, class ForEachPart>
void RowExchange::run(std::int64_t num_rows, RowAt row_at, ForEachPart for_each_part) const {
  auto* const own = reinterpret_cast<float*>(program_.scratch(scratch_));
  float* const all = own + capacity_;
  const auto num_ranks = static_cast<std::size_t>(exchange_->num_ranks());
  std::vector<int> counts(num_ranks), starts(num_ranks);
  for (std::int64_t begin = 0; begin < num_rows; begin += rows_at_once_) {
    const std::int64_t end = std::min(begin + rows_at_once_, num_rows);
    const auto for_each = [&](auto f) {
      for (std::int64_t row = begin; row < end; ++row) {
        for_each_part(row, [&](const RankColumns& part) { f(row_at(row) + part.column, part); });
      }
    };
    std::fill(counts.begin(), counts.end(), 0);
    float* packed = own;
    for_each([&](const float* numbers, const RankColumns& part) {
      counts[static_cast<std::size_t>(part.rank)] += static_cast<int>(part.width);
      if (part.rank == exchange_->rank()) packed = std::copy_n(numbers, part.width, packed);
    });
    for (std::size_t rank = 1; rank < num_ranks; ++rank) {
      starts[rank] = starts[rank - 1] + counts[rank - 1];
    }
    exchange_->gather(own, all, counts.data(), starts.data());
    if (exchange_->has_failed()) return;
    std::fill(counts.begin(), counts.end(), 0);
    for_each([&](float* numbers, const RankColumns& part) {
      if (part.rank == exchange_->rank()) return;
      const auto rank = static_cast<std::size_t>(part.rank);
      std::copy_n(all + starts[rank] + counts[rank], part.width, numbers);
      counts[rank] += static_cast<int>(part.width);
    });
  }
}

}  // namespace pellucid
