// ThreadPool: threads that compute a step together. They stay alive between steps. Within a step
// they spin while they wait for each other. When no step comes, the system parks them, because on a
// small machine the server and the tokenizer need the same cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "memory_units.h"
#include "patience.h"
#include "process_owned.h"

namespace pellucid {

// A counter that only grows, and that threads wait for.
class alignas(kCacheLine) Epoch {
 public:
  std::uint32_t now() const { return number_.load(std::memory_order_acquire); }

  // Adds one, and wakes all threads that wait. They see every write before it.
  void advance();

  // Waits until the number differs from `seen`: spins, then yields the core, then parks.
  void wait_beyond(std::uint32_t seen);

 private:
  // Where threads wait without using a core.
  struct ParkingLot {
    std::mutex mutex;
    std::condition_variable advanced;
  };

  void park(std::uint32_t seen);

  std::atomic<std::uint32_t> number_{0};
  std::atomic<int> num_parked_{0};
  ProcessOwned<ParkingLot> parking_;
};

class alignas(kCacheLine) Barrier {
 public:
  explicit Barrier(int num_threads) : num_threads_(num_threads) {}

  // Only while no thread waits.
  void resize(int num_threads) { num_threads_ = num_threads; }

  // Waits for all threads. Meanwhile a thread calls idle(), which does something short, until it
  // returns false.
  template <class Idle>
  void wait(Idle&& idle) {
    const std::uint32_t seen = epoch_.now();
    if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_threads_) {
      while (epoch_.now() == seen && idle()) {
      }
      epoch_.wait_beyond(seen);
    } else {
      num_arrived_.store(0, std::memory_order_relaxed);
      epoch_.advance();
    }
  }

 private:
  int num_threads_;
  alignas(kCacheLine) std::atomic<int> num_arrived_{0};
  Epoch epoch_;
};

class ThreadPool;

// One thread in a run. All workers of a run make the same calls in the same order.
class Worker {
 public:
  int index() const { return index_; }  // 0 is the caller of ThreadPool::run
  int num_threads() const { return num_threads_; }

  // Calls f(begin, end) for ranges of at most `grain` that together are [0, num_items), on all
  // threads, and returns when all calls have returned. A thread takes its own contiguous share
  // first, the same in every step, so that its caches stay useful. Then it helps the others. Then
  // it waits for them, and calls idle() meanwhile.
  template <class F, class Idle>
  void parallel_for(std::int64_t num_items, std::int64_t grain, F&& f, Idle&& idle);
  template <class F>
  void parallel_for(std::int64_t num_items, std::int64_t grain, F&& f) {
    parallel_for(num_items, grain, f, [] { return false; });
  }

  // Where this thread's share of [0, num_items) begins.
  std::int64_t share_begin(std::int64_t num_items) const { return share_begin(num_items, index_); }

 private:
  friend ThreadPool;
  Worker(ThreadPool& pool, int index, int num_threads)
      : pool_(pool), index_(index), num_threads_(num_threads) {}

  std::int64_t share_begin(std::int64_t num_items, std::int64_t thread) const {
    return (num_items * thread + num_threads_ - 1) / num_threads_;
  }

  ThreadPool& pool_;
  const int index_;
  const int num_threads_;
  int phase_ = 0;  // which of the two sets of cursors is in use
};

class ThreadPool {
 public:
  // `num_threads` >= 1, the caller's own included. Throws std::system_error.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads of the next run.
  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }
  // The number that the pool was made for: no run has more.
  int max_threads() const { return max_threads_; }

  // Ends or starts threads; 1 <= num_threads <= max_threads(). Waits for a run that is under way.
  // Throws std::system_error, and then has one thread; or throws as `require_own_process`.
  void resize(int num_threads);

  // Throws std::runtime_error in a process forked off the one that made the pool: its threads are
  // not there, and a mutex that one of them held stays locked.
  void require_own_process() const { threads_.require_own_process(); }

  // Calls task(Worker&) once on every thread and returns when all have returned. The task must not
  // throw. Callers on several threads take turns. Throws as `require_own_process`.
  template <class Task>
  void run(Task&& task) {
    run_erased([](void* data,
                  Worker& worker) { (*static_cast<std::remove_reference_t<Task>*>(data))(worker); },
               &task);
  }

  // Calls task(Worker&) on the caller's thread alone, and wakes no other: for tasks that end before
  // the others would be awake. Throws as `require_own_process`.
  template <class Task>
  void run_alone(Task&& task) {
    require_own_process();
    const std::lock_guard<std::mutex> lock(run_mutex_);
    Worker worker(*this, 0, 1);
    task(worker);
  }

 private:
  friend Worker;
  using TaskFunction = void (*)(void* data, Worker&);

  // The number of items of a thread's share that are taken, by the thread itself or by helpers.
  struct alignas(kCacheLine) Cursor {
    std::atomic<std::int64_t> num_taken{0};
  };

  void run_erased(TaskFunction function, void* data);
  void work(int index, std::uint32_t next_run);
  void start(int num_threads);
  void stop();

  const int max_threads_;
  std::atomic<int> num_threads_{1};
  std::mutex run_mutex_;
  TaskFunction function_ = nullptr;  // null: time to end
  void* data_ = nullptr;
  Epoch start_;
  Barrier barrier_;
  std::unique_ptr<Cursor[]> cursors_[2];            // of even and of odd phases, [max_threads] each
  ProcessOwned<std::vector<std::thread>> threads_;  // workers 1 .. num_threads - 1
};

template <class F, class Idle>
void Worker::parallel_for(std::int64_t num_items, std::int64_t grain, F&& f, Idle&& idle) {
  const std::int64_t num_threads = num_threads_;
  if (num_threads == 1) {
    for (std::int64_t begin = 0; begin < num_items; begin += grain) {
      f(begin, std::min(begin + grain, num_items));
    }
    return;
  }
  // No thread has used the other set since the last barrier, and none will before the next one.
  ThreadPool::Cursor* const cursors = pool_.cursors_[phase_].get();
  phase_ = 1 - phase_;
  pool_.cursors_[phase_][static_cast<std::size_t>(index_)].num_taken.store(
      0, std::memory_order_relaxed);

  for (std::int64_t i = 0; i < num_threads; ++i) {
    const std::int64_t thread = (index_ + i) % num_threads;
    const std::int64_t first = share_begin(num_items, thread);
    const std::int64_t size = share_begin(num_items, thread + 1) - first;
    std::atomic<std::int64_t>& num_taken = cursors[thread].num_taken;
    while (num_taken.load(std::memory_order_relaxed) < size) {
      const std::int64_t begin = num_taken.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= size) break;
      f(first + begin, first + std::min(begin + grain, size));
    }
  }
  pool_.barrier_.wait(idle);
}

}  // namespace pellucid
