// Calls MPI through addresses.
#include "exchange.h"

#include <chrono>

#include "patience.h"

namespace pellucid {
namespace {

// A handle as an argument: where an MPI takes an int, it reads the lower half of the register or of
// the slot on the stack, on all little-endian machines that pellucid runs on.
using Handle = std::uintptr_t;
using GatherFunction = int (*)(const void* own, int count, Handle type, void* all,
                               const int* counts, const int* starts, Handle types,
                               Handle communicator, Handle* request);
using TestFunction = int (*)(Handle* request, int* is_done, void* status);

constexpr int kSuccess = 0;
constexpr std::size_t kStatusBytes = 256;  // more than any MPI's

}  // namespace

void Exchange::gather(const float* own, float* all, const int* counts, const int* starts) {
  if (has_failed()) return;
  const auto begin = std::chrono::steady_clock::now();
  const auto gather = reinterpret_cast<GatherFunction>(mpi_.gather);
  const auto test = reinterpret_cast<TestFunction>(mpi_.test);
  Handle request = 0;
  if (gather(own, counts[rank_], mpi_.number_type, all, counts, starts, mpi_.number_type,
             mpi_.communicator, &request) != kSuccess) {
    fail();
  }
  alignas(16) unsigned char status[kStatusBytes];
  Patience patience;
  int is_done = 0;
  while (!has_failed()) {
    if (test(&request, &is_done, status) != kSuccess) fail();
    if (is_done != 0) break;
    patience.wait();
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  // One thread at a time calls.
  seconds_.store(seconds() + taken.count(), std::memory_order_relaxed);
  num_calls_.store(num_calls() + 1, std::memory_order_relaxed);
}

}  // namespace pellucid
