// Adds the exchange of columns to a program.
#include "program_exchange.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "require.h"

namespace pellucid {
namespace {

constexpr std::int64_t kExchangedFloats = 1 << 18;  // at a time, unless a row is longer

}  // namespace

void Division::check(const char* name, std::int64_t count) const {
  if (!is_divided()) return;
  require(static_cast<int>(starts.size()) == exchange->num_ranks() + 1 && starts.front() == 0 &&
              starts.back() == count && std::is_sorted(starts.begin(), starts.end()),
          name, ": must divide ", count, " among ", exchange->num_ranks(), " ranks");
}

std::int64_t Division::own_begin() const {
  return starts[static_cast<std::size_t>(exchange->rank())];
}

std::int64_t Division::own_end() const {
  return starts[static_cast<std::size_t>(exchange->rank()) + 1];
}

int Division::rank_of(std::int64_t item) const {
  return static_cast<int>(std::upper_bound(starts.begin(), starts.end(), item) - starts.begin()) -
         1;
}

RowExchange::RowExchange(Program& program, std::shared_ptr<Exchange> exchange, std::int64_t width)
    : program_(program),
      exchange_(std::move(exchange)),
      capacity_(std::max(width, kExchangedFloats)),
      rows_at_once_(capacity_ / width),
      scratch_(program.add_scratch(2 * static_cast<std::size_t>(capacity_) * sizeof(float))) {
  const auto check = [exchange = exchange_](const Step&) {
    if (exchange->has_failed()) {
      throw std::runtime_error("exchange: a process with a part of the weights has gone");
    }
  };
  program.add_preparation(check);
  program.add_conclusion(check);
}

void add_exchange(Program& program, RowSet rows, View y, std::shared_ptr<Exchange> exchange,
                  std::vector<RankColumns> parts) {
  std::int64_t width = 0;
  for (const RankColumns& part : parts) {
    require(part.rank >= 0 && part.rank < exchange->num_ranks(), "parts: there is no rank ",
            part.rank);
    require(part.column >= 0 && part.width >= 0, "parts: must be columns of y");
    if (part.width == 0) continue;
    program.check_view("y", {y.buffer, y.column + part.column}, rows, part.width);
    width += part.width;
  }
  require(width > 0, "parts: are empty");
  const RowExchange rows_of_all(program, std::move(exchange), width);
  program.add_phase(
      "exchange", {y.buffer, rows_of_all.scratch()},
      [rows](const Step& step) -> std::int64_t { return step.num_rows(rows) > 0 ? 1 : 0; },
      [](const Step&) -> std::int64_t { return 1; },
      [=, &program, parts = std::move(parts)](const Step& step, const Share&) {
        rows_of_all.run(
            step.num_rows(rows), [&](std::int64_t row) { return program.row(y, row); },
            [&](std::int64_t, auto f) {
              for (const RankColumns& part : parts) f(part);
            });
      });
}

}  // namespace pellucid
