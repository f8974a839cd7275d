// Packs weight matrices into the kernels' layout on a background thread, while a model loads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "packed_matrix.h"
#include "process_owned.h"
#include "thread_pool.h"

namespace pellucid {

// A matrix that is to be packed.
struct Packing {
  struct Bytes {
    const void* data;
    std::size_t size;
  };

  PackedMatrix* matrix;
  WeightSource source;
  std::vector<Bytes> files;           // views of mapped files: what `source` consists of
  std::shared_ptr<const void> owner;  // keeps all of these
};

// A thread of its own packs matrices in the order in which they come, until a pool is there to
// help: reading a model's tokenizer takes one core for as long as packing its weights takes
// another. The pages of files that it went through it gives back, so that no model is in memory
// twice. In a process forked off the one that made it, the calls throw std::runtime_error.
class WeightPacker {
 public:
  WeightPacker();
  // Leaves undone what nobody waits for any more.
  ~WeightPacker();
  WeightPacker(const WeightPacker&) = delete;
  WeightPacker& operator=(const WeightPacker&) = delete;

  // What `packing` owns is released when this object is.
  void add(Packing packing);

  // Bytes of files that are yet to be packed.
  std::size_t waiting_bytes() const;

  // Packs some tens of megabytes on all threads of `pool`. Returns the bytes of files that are yet
  // to be packed; 0: all matrices are ready.
  std::size_t help(ThreadPool& pool);

 private:
  struct Job {
    Packing packing;
    std::int64_t num_taken = 0, num_done = 0;  // panels
  };

  // All that the thread shares with those who add and help.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> jobs;
    std::size_t first_open = 0;  // all jobs before it have been taken
    std::size_t num_done = 0;    // jobs
    std::size_t waiting_bytes = 0;
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
