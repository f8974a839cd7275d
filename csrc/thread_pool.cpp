// ThreadPool, Epoch and Barrier: how the threads of a step start, end, and wait for work and for
// each other.
#include "thread_pool.h"

#include <cassert>

namespace pellucid {

void Epoch::advance() {
  // Sequentially consistent, as in park(): either this thread sees the one that parks, or that
  // thread sees the new number.
  number_.fetch_add(1, std::memory_order_seq_cst);
  if (num_parked_.load(std::memory_order_seq_cst) > 0) {
    const std::lock_guard<std::mutex> lock(parking_->mutex);
    parking_->advanced.notify_all();
  }
}

void Epoch::wait_beyond(std::uint32_t seen) {
  if (!ends_soon<Waiting>([&] { return now() != seen; })) park(seen);
}

void Epoch::park(std::uint32_t seen) {
  std::unique_lock<std::mutex> lock(parking_->mutex);
  num_parked_.fetch_add(1, std::memory_order_seq_cst);
  parking_->advanced.wait(lock, [&] { return number_.load(std::memory_order_seq_cst) != seen; });
  num_parked_.fetch_sub(1, std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int num_threads) : max_threads_(num_threads), barrier_(1) {
  assert(num_threads >= 1);
  for (auto& cursors : cursors_) {
    cursors = std::make_unique<Cursor[]>(static_cast<std::size_t>(num_threads));
  }
  start(num_threads);
}

ThreadPool::~ThreadPool() {
  if (threads_.is_own_process()) stop();
}

void ThreadPool::resize(int num_threads) {
  assert(1 <= num_threads && num_threads <= max_threads_);
  require_own_process();
  const std::lock_guard<std::mutex> lock(run_mutex_);
  if (num_threads == num_threads_) return;
  stop();
  start(num_threads);
}

// Starts the threads of a pool that has none but the caller's.
void ThreadPool::start(int num_threads) {
  const std::uint32_t next_run = start_.now();
  barrier_.resize(num_threads);
  num_threads_ = num_threads;
  try {
    for (int index = 1; index < num_threads; ++index) {
      threads_->emplace_back([this, index, next_run] { work(index, next_run); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

void ThreadPool::stop() {
  function_ = nullptr;
  start_.advance();
  for (std::thread& thread : *threads_) thread.join();
  threads_->clear();
  barrier_.resize(1);
  num_threads_ = 1;
}

void ThreadPool::run_erased(TaskFunction function, void* data) {
  require_own_process();
  const std::lock_guard<std::mutex> lock(run_mutex_);
  const int num_threads = num_threads_;
  for (int i = 0; i < num_threads; ++i) {
    cursors_[0][static_cast<std::size_t>(i)].num_taken.store(0, std::memory_order_relaxed);
  }
  function_ = function;
  data_ = data;
  start_.advance();
  Worker worker(*this, 0, num_threads);
  function(data, worker);
  barrier_.wait([] { return false; });
}

void ThreadPool::work(int index, std::uint32_t next_run) {
  for (std::uint32_t run = next_run;; ++run) {
    start_.wait_beyond(run);
    if (function_ == nullptr) return;
    Worker worker(*this, index, num_threads_);
    function_(data_, worker);
    barrier_.wait([] { return false; });
  }
}

}  // namespace pellucid
