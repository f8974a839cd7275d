// Packs weight matrices into the kernels' layout on a background thread, while a model loads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "process_owned.h"
#include "thread_pool.h"

namespace pellucid {

// A matrix to pack.
struct Packing {
  struct Bytes {
    const void* data;
    std::size_t size;
  };

  std::int64_t num_panels;
  std::function<void(std::int64_t panel_begin, std::int64_t panel_end)> pack;
  std::vector<Bytes> files;           // views of mapped files: what is packed
  std::shared_ptr<const void> owner;  // keeps all of these
};

// Packs matrices on a thread of its own, in the order in which they are added, until a pool can
// help: loading a model's tokenizer takes one core for about as long as packing its weights takes
// another. Gives the pages of packed files back, so that a model is never in memory twice. In a
// process forked off the one that made it, the calls throw std::runtime_error.
class WeightPacker {
 public:
  // For matrices of about `num_bytes` in all.
  explicit WeightPacker(std::size_t num_bytes);
  // Drops matrices that are not packed yet.
  ~WeightPacker();
  WeightPacker(const WeightPacker&) = delete;
  WeightPacker& operator=(const WeightPacker&) = delete;

  // Adds a matrix. Its `owner` is released with this object.
  void add(Packing packing);

  // Bytes of files that are not packed yet.
  std::size_t waiting_bytes() const;

  // Packs some tens of megabytes on all threads of `pool`. Returns the bytes of files that are not
  // packed yet; 0: all matrices are ready.
  std::size_t help(ThreadPool& pool);

 private:
  struct Job {
    Packing packing;
    std::int64_t num_taken = 0, num_done = 0;  // panels
  };

  // The state that the thread shares with callers of add() and help().
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> jobs;
    std::size_t first_open = 0;  // all jobs before it have been taken
    std::size_t num_done = 0;    // jobs
    std::size_t waiting_bytes = 0;
    std::size_t left_to_helpers = 0;
    bool is_ending = false;
    std::thread thread;

    void work();
    // Packs a piece of the first matrix that has one; false if there is none.
    bool pack_piece();
    void finish_piece(Job& job, std::int64_t num_panels);
  };

  ProcessOwned<Shared> shared_;
};

}  // namespace pellucid
