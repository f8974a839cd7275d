// Memory that matrices share: parts of their own, zeroed, and an end.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "packed_matrix.h"
#include "weight_memory.h"

namespace {

using namespace pellucid;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Taken and written by several threads.
void test_parts_are_apart() {
  WeightMemory memory(320 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 1; t <= 3; ++t) {
    threads.emplace_back([&memory, t] {
      for (std::size_t size = 1; size < 3 * kMiB; size = 3 * size + 1) {
        std::byte* const part = memory.take(size);
        CHECK(part != nullptr && reinterpret_cast<std::uintptr_t>(part) % 64 == 0);
        for (std::size_t i = 0; i < size; ++i) CHECK(part[i] == std::byte{0});
        std::memset(part, t, size);
        std::this_thread::yield();
        for (std::size_t i = 0; i < size; ++i) CHECK(part[i] == static_cast<std::byte>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void test_it_ends() {
  WeightMemory memory(4 * kMiB);
  int num_taken = 0;
  while (memory.take(kMiB) != nullptr) ++num_taken;
  CHECK(num_taken >= 4 && num_taken <= 8);
  CHECK(memory.take(SIZE_MAX - 64) == nullptr);
  CHECK(memory.take(64) != nullptr || num_taken == 8);  // what was refused is not gone
}

// A matrix lives on when nobody else holds the memory, and one that finds no room has its own.
void test_matrices() {
  auto memory = std::make_shared<WeightMemory>(kMiB);
  std::vector<PackedMatrix> matrices;
  const std::vector<float> weights(64 * 2048, 1.5f);
  for (int i = 0; i < 12; ++i) {
    matrices.emplace_back(Format::kF32, 64, 2048, Activations::kNative, memory);
    matrices.back().pack({weights.data()}, 0, matrices.back().num_panels());
  }
  memory.reset();
  std::vector<float> row(2048);
  for (const PackedMatrix& matrix : matrices) {
    matrix.gather_row(63, row.data());
    for (const float x : row) CHECK(x == 1.5f);
  }
}

}  // namespace

int main() {
  test_parts_are_apart();
  test_it_ends();
  test_matrices();
  std::printf("ok\n");
}
