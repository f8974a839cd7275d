// Packs matrices behind their owner's back.
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
// twice.
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

  void work();
  // Packs a piece of the first matrix that has one; false if there is none.
  bool pack_piece();
  void finish_piece(Job& job, std::int64_t num_panels);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::size_t first_open_ = 0;  // all jobs before it have been taken
  std::size_t num_done_ = 0;    // jobs
  std::size_t waiting_bytes_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace pellucid
