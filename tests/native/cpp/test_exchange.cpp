// Rows that several ranks compute together, each a thread with a program of its own. What stands in
// for MPI gathers in memory.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "isa.h"
#include "program.h"
#include "program_exchange.h"

namespace {

using namespace pellucid;

constexpr int kRanks = 3, kError = 17;

struct World {
  std::mutex mutex;
  std::map<int, std::map<int, std::vector<float>>> sent;  // of each call, by rank
};

// A rank's communicator. Its request is the rank itself.
struct Rank {
  Rank(World& world, int rank) : world(&world), rank(rank) {}

  World* const world;
  const int rank;
  int gather_status = 0, test_status = 0;
  std::atomic<int> num_tests{0};
  int call = 0;
  float* all = nullptr;
  std::vector<int> counts, starts;

  std::shared_ptr<Exchange> exchange();
};

int gather(const void* own, int count, std::uintptr_t, void* all, const int* counts,
           const int* starts, std::uintptr_t, std::uintptr_t communicator,
           std::uintptr_t* request) {
  Rank& self = *reinterpret_cast<Rank*>(communicator);
  *request = communicator;
  self.all = static_cast<float*>(all);
  self.counts.assign(counts, counts + kRanks);
  self.starts.assign(starts, starts + kRanks);
  CHECK(self.counts[static_cast<std::size_t>(self.rank)] == count);
  const auto* const numbers = static_cast<const float*>(own);
  const std::lock_guard<std::mutex> lock(self.world->mutex);
  self.world->sent[++self.call][self.rank].assign(numbers, numbers + count);
  return self.gather_status;
}

int test(std::uintptr_t* request, int* is_done, void*) {
  Rank& self = *reinterpret_cast<Rank*>(*request);
  ++self.num_tests;
  const std::lock_guard<std::mutex> lock(self.world->mutex);
  const auto& sent = self.world->sent[self.call];
  *is_done = sent.size() == kRanks;
  if (*is_done == 0) return self.test_status;
  for (const auto& [rank, numbers] : sent) {
    CHECK(static_cast<int>(numbers.size()) == self.counts[static_cast<std::size_t>(rank)]);
    std::copy(numbers.begin(), numbers.end(),
              self.all + self.starts[static_cast<std::size_t>(rank)]);
  }
  return self.test_status;
}

std::shared_ptr<Exchange> Rank::exchange() {
  return std::make_shared<Exchange>(rank, kRanks,
                                    MpiAddresses{reinterpret_cast<std::uintptr_t>(&gather),
                                                 reinterpret_cast<std::uintptr_t>(&test),
                                                 reinterpret_cast<std::uintptr_t>(this), 0});
}

float number(std::int64_t row, std::int64_t column) {
  return static_cast<float>(1000 * row + column % 997);
}

// Fills the columns of its rank, and checks all that are exchanged; the first one is not.
std::unique_ptr<Program> make_program(const std::shared_ptr<Exchange>& exchange, std::int64_t width,
                                      std::int64_t num_rows) {
  auto program = std::make_unique<Program>(*find_kernel_table("portable"),
                                           std::make_shared<ThreadPool>(1), num_rows, 0);
  Program& own = *program;
  const View y{own.add_buffer(RowSet::kTokens, width + 1)};
  // Rank 1 has nothing.
  const std::int64_t half = width / 2;
  const std::vector<RankColumns> parts = {{0, 0, half}, {1, half, 0}, {2, half, width - half}};
  const RankColumns part = parts[static_cast<std::size_t>(exchange->rank())];
  own.add_row_phase("fill", RowSet::kTokens, {y.buffer}, [=, &own](const Step&, std::int64_t r) {
    float* const row = own.row(y, r);
    std::fill_n(row, width + 1, -1.0f);
    for (std::int64_t i = 0; i < part.width; ++i) {
      row[1 + part.column + i] = number(r, part.column + i);
    }
  });
  add_exchange(own, RowSet::kTokens, {y.buffer, 1}, exchange, parts);
  own.add_row_phase("check", RowSet::kTokens, {y.buffer}, [=, &own](const Step&, std::int64_t r) {
    if (exchange->has_failed()) return;
    const float* const row = own.row(y, r);
    CHECK(row[0] == -1.0f);
    for (std::int64_t i = 0; i < width; ++i) CHECK(row[1 + i] == number(r, i));
  });
  own.finish();
  return program;
}

Step step_of(std::int64_t num_rows) {
  Step step;
  step.num_tokens = num_rows;
  return step;
}

// Rows go in pieces of 2^18 floats.
void all_ranks_get_all_rows() {
  for (const auto& [width, num_calls] :
       {std::pair<std::int64_t, int>{5, 1}, {1 << 17, 3}, {(1 << 18) + 2, 5}}) {
    World world;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank, width = width, num_calls = num_calls] {
        Rank self(world, rank);
        const std::shared_ptr<Exchange> exchange = self.exchange();
        const auto program = make_program(exchange, width, 5);
        program->run(step_of(0));
        CHECK(exchange->num_calls() == 0 && exchange->seconds() == 0.0);
        program->run(step_of(5));
        CHECK(exchange->num_calls() == num_calls && exchange->seconds() > 0.0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

bool throws(Program& program) {
  try {
    program.run(step_of(1));
  } catch (const std::runtime_error&) {
    return true;
  }
  return false;
}

// The other ranks never come.
void a_failed_exchange_ends_its_step_and_all_later_ones() {
  for (const int case_number : {0, 1, 2}) {
    World world;
    Rank self(world, 0);
    if (case_number == 0) self.gather_status = kError;
    if (case_number == 1) self.test_status = kError;
    const std::shared_ptr<Exchange> exchange = self.exchange();
    const auto program = make_program(exchange, 5, 1);
    std::thread other([&] {
      if (case_number != 2) return;
      while (self.num_tests < 3) std::this_thread::yield();
      exchange->fail();
    });
    CHECK(throws(*program));
    other.join();
    CHECK(exchange->has_failed() && exchange->num_calls() == 1);
    CHECK(throws(*program));
    CHECK(exchange->num_calls() == 1);
  }
}

void items_belong_to_ranks() {
  World world;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<std::int64_t> starts = {0, 2, 2, 7};
    const Division division{Rank(world, rank).exchange(), starts};
    division.check("items", 7);
    CHECK(division.own_begin() == starts[static_cast<std::size_t>(rank)]);
    CHECK(division.own_end() == starts[static_cast<std::size_t>(rank) + 1]);
    for (std::int64_t item = 0; item < 7; ++item) {
      CHECK(division.rank_of(item) == (item < 2 ? 0 : 2));
    }
  }
}

}  // namespace

int main() {
  all_ranks_get_all_rows();
  a_failed_exchange_ends_its_step_and_all_later_ones();
  items_belong_to_ranks();
  std::printf("ok\n");
}
