// Exchange: gathers, on each of several processes, the numbers that each of them has computed.
#pragma once

#include <atomic>
#include <cstdint>

namespace pellucid {

// What an Exchange needs of MPI: addresses of functions, and handles, which are integers in some
// MPIs and pointers in others. mpi4py has loaded one of them; the extension is linked to none.
struct MpiAddresses {
  std::uintptr_t gather;        // of MPI_Iallgatherv
  std::uintptr_t test;          // of MPI_Test
  std::uintptr_t communicator;  // of the processes; its errors are returned
  std::uintptr_t number_type;   // MPI_FLOAT
};

// The processes are ranks 0 .. num_ranks - 1. All of them make the same calls in the same order.
class Exchange {
 public:
  Exchange(int rank, int num_ranks, const MpiAddresses& mpi)
      : rank_(rank), num_ranks_(num_ranks), mpi_(mpi) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  // Waits until `all` has the counts[r] numbers of each rank r from all[starts[r]] on; this rank's
  // own are in `own`. Returns at once, with `all` undefined, when the exchange has failed.
  void gather(const float* own, float* all, const int* counts, const int* starts);

  // Ends a call that waits, and all later ones: another rank has gone. From any thread.
  void fail() { has_failed_.store(true, std::memory_order_release); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }

  // Calls of `gather`, and the seconds that they took, with those in which this rank waited for
  // others.
  std::int64_t num_calls() const { return num_calls_.load(std::memory_order_relaxed); }
  double seconds() const { return seconds_.load(std::memory_order_relaxed); }

 private:
  const int rank_;
  const int num_ranks_;
  const MpiAddresses mpi_;
  std::atomic<bool> has_failed_{false};
  std::atomic<std::int64_t> num_calls_{0};
  std::atomic<double> seconds_{0.0};
};

}  // namespace pellucid
