// Memory that matrices share: parts of their own, zeroed, and an end.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "aligned_buffer.h"
#include "check.h"
#include "packed_matrix.h"
#include "weight_file.h"
#include "weight_memory.h"

namespace {

using namespace pellucid;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Taken and written by several threads.
void test_parts_are_apart() {
  WeightBuffer memory(320 * kMiB);
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
  WeightBuffer memory(4 * kMiB);
  int num_taken = 0;
  while (memory.take(kMiB) != nullptr) ++num_taken;
  CHECK(num_taken >= 4 && num_taken <= 8);
  CHECK(memory.take(SIZE_MAX - 64) == nullptr);
  CHECK(memory.take(64) != nullptr || num_taken == 8);  // what was refused is not gone
}

// A matrix lives on when nobody else holds the memory, and one that finds no room has its own.
void test_matrices() {
  auto memory = std::make_shared<WeightBuffer>(kMiB);
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

// A matrix in a file multiplies like any other, and the pages that a step finds are counted.
void test_file() {
  const auto file = std::make_shared<WeightFile>("/tmp");
  std::byte* const first = file->take(10000);
  std::byte* const second = file->take(1);
  for (int i = 0; i < 10000; ++i) CHECK(first[i] == std::byte{0});
  std::memset(first, 1, 10000);
  CHECK(*second == std::byte{0} && file->num_bytes() == 4 * 4096);
  file->note_read(first, 10000);
  CHECK(file->bytes_read() == 10000 && file->bytes_found() == 10000);

  PackedMatrix matrix(Format::kF32, 3, 5, Activations::kNative, file);
  const std::vector<float> weights(15, 2.0f);
  matrix.pack({weights.data()}, 0, 1);
  float row[5];
  matrix.gather_row(2, row);
  CHECK(row[4] == 2.0f);
  matrix.note_read();
  CHECK(file->bytes_read() == 10000 + matrix.num_bytes());
}

void test_directory_that_is_not_there() {
  bool is_refused = false;
  try {
    WeightFile file("/nowhere");
  } catch (const std::system_error&) {
    is_refused = true;
  }
  CHECK(is_refused);
}

// From the heap, and from 2 MiB on in huge pages.
void test_buffers() {
  CHECK(AlignedBuffer(0).data() == nullptr);
  void* const past = AlignedBuffer(2 * kMiB).data();
  CHECK(msync(past, kMiB, MS_ASYNC) != 0);  // no memory: it is given back
  for (const std::size_t size : {std::size_t{1}, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB}) {
    AlignedBuffer memory(size);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    CHECK(address % (size < 2 * kMiB ? 64 : 2 * kMiB) == 0);
    CHECK(memory.data()[0] == std::byte{0} && memory.data()[size - 1] == std::byte{0});
  }
}

}  // namespace

int main() {
  test_buffers();
  test_parts_are_apart();
  test_it_ends();
  test_matrices();
  test_file();
  test_directory_that_is_not_there();
  std::printf("ok\n");
}
