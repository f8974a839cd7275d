// Where a row is largest, noted piece by piece on every level.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "isa.h"
#include "largest.h"
#include "thread_pool.h"

namespace {

using pellucid::KernelTable;
using pellucid::LargestMark;
using pellucid::ThreadPool;
using pellucid::Worker;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::int64_t definition(const std::vector<float>& row) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (std::isnan(row[i])) return static_cast<std::int64_t>(i);
    if (row[i] > row[best]) best = i;
  }
  return static_cast<std::int64_t>(best);
}

void check_row(const KernelTable& kernels, ThreadPool& pool, const std::vector<float>& row) {
  const auto size = static_cast<std::int64_t>(row.size());
  for (const std::int64_t grain : {size, std::int64_t{32}, std::int64_t{7}}) {
    LargestMark mark = 0;
    pool.run([&](Worker& worker) {
      worker.parallel_for(size, grain, [&](std::int64_t begin, std::int64_t end) {
        note_largest(kernels, row.data(), begin, end, mark);
      });
    });
    CHECK(pellucid::column_of(mark) == definition(row));
  }
}

void check_level(const KernelTable& kernels) {
  ThreadPool pool(3);
  std::mt19937 random(7);
  for (const std::size_t size : {1, 15, 16, 17, 200, 1000}) {
    std::uniform_int_distribution<int> few_numbers(-5, 5);  // so that many are equal
    std::uniform_int_distribution<std::size_t> places(0, size - 1);
    std::vector<float> row(size);
    for (float& x : row) x = static_cast<float>(few_numbers(random));
    check_row(kernels, pool, row);
    for (float& x : row) x -= 6.0f;  // all negative
    check_row(kernels, pool, row);
    for (const float special : {-kInfinity, kInfinity, kNaN, -kNaN}) {
      row[places(random)] = special;
      row[places(random)] = special;
      check_row(kernels, pool, row);
    }
    check_row(kernels, pool, std::vector<float>(size, -kInfinity));
    std::vector<float> zeros(size, -0.0f);
    zeros.back() = 0.0f;
    check_row(kernels, pool, zeros);
  }
}

}  // namespace

int main() {
  for (const KernelTable* kernels : pellucid::supported_kernel_tables()) check_level(*kernels);
  std::puts("ok");
}
