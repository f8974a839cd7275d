// Matrices that are packed behind their owner's back: the bytes are those of packing at once, the
// counts are true, and nobody waits for what nobody wants.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "packed_matrix.h"
#include "thread_pool.h"
#include "weight_packer.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kOutputs = 16500, kInputs = 1024;  // 16 MiB, the last panel is not full

std::vector<std::uint8_t> some_codes() {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(kOutputs * kInputs));
  std::uint32_t state = 1;
  for (std::uint8_t& code : codes) {
    state = state * 1664525u + 1013904223u;
    code = static_cast<std::uint8_t>(state >> 24);
  }
  return codes;
}

struct Fixture {
  const std::vector<std::uint8_t> codes = some_codes();
  const std::vector<float> scales = std::vector<float>(kOutputs, 0.5f);

  PackedMatrix matrix() const { return {Format::kInt8Channel, kOutputs, kInputs}; }
  WeightSource source() const { return {codes.data(), scales.data()}; }
  std::function<void(std::int64_t, std::int64_t)> packs(PackedMatrix& matrix) const {
    return [&matrix, source = source()](std::int64_t begin, std::int64_t end) {
      matrix.pack(source, begin, end);
    };
  }
  // No files: what is on the heap must not be given back. The bytes are counted all the same.
  Packing packing(PackedMatrix& matrix, std::size_t file_bytes) const {
    return {matrix.num_panels(), packs(matrix), {{codes.data() + 1, file_bytes}}, nullptr};
  }
};

void test_it_packs() {
  const Fixture fixture;
  PackedMatrix expected = fixture.matrix();
  expected.pack(fixture.source(), 0, expected.num_panels());
  ThreadPool pool(3);
  std::vector<PackedMatrix> matrices;
  for (int i = 0; i < 4; ++i) matrices.push_back(fixture.matrix());
  auto owner = std::make_shared<int>(0);
  {
    WeightPacker packer(0);
    CHECK(packer.help(pool) == 0);  // nothing to do
    for (PackedMatrix& matrix : matrices) {
      Packing packing = fixture.packing(matrix, 100);
      packing.owner = owner;
      packer.add(std::move(packing));
    }
    CHECK(packer.waiting_bytes() <= 400);
    while (packer.help(pool) > 0) {
    }
    CHECK(packer.waiting_bytes() == 0 && owner.use_count() == 5);
  }
  CHECK(owner.use_count() == 1);
  for (const PackedMatrix& matrix : matrices) {
    CHECK(std::memcmp(matrix.view().panels, expected.view().panels, expected.num_bytes()) == 0);
  }
}

// Between calls of help() the tokenizer's loading goes on: each call packs 32 pieces on each
// thread.
void test_help_is_counted() {
  const Fixture fixture;
  for (const int num_threads : {1, 2}) {
    PackedMatrix matrix = fixture.matrix();  // 33 pieces
    ThreadPool pool(num_threads);
    WeightPacker packer(1000);  // leaves all of it to helpers
    packer.add(fixture.packing(matrix, 100));
    int num_calls = 1;
    while (packer.help(pool) > 0) ++num_calls;
    CHECK(num_calls == (num_threads == 1 ? 2 : 1));
  }
}

// More waits than is left to helpers, so that the thread is at work when all of it ends.
void test_nobody_waits_for_what_is_dropped() {
  const Fixture fixture;
  constexpr std::size_t kFileBytes = std::size_t{1} << 28;
  void* const file =
      mmap(nullptr, kFileBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(file != MAP_FAILED);
  std::vector<PackedMatrix> matrices;
  for (int i = 0; i < 20; ++i) matrices.push_back(fixture.matrix());
  {
    WeightPacker packer(20 * kFileBytes);
    for (PackedMatrix& matrix : matrices) {
      packer.add({matrix.num_panels(), fixture.packs(matrix), {{file, kFileBytes}}, nullptr});
    }
  }
  munmap(file, kFileBytes);
}

}  // namespace

int main() {
  test_it_packs();
  test_help_is_counted();
  test_nobody_waits_for_what_is_dropped();
  std::printf("ok\n");
}
