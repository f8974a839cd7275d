// ThreadPool, to be run plainly and under ThreadSanitizer.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "thread_pool.h"

namespace {

using pellucid::ThreadPool;
using pellucid::Worker;

void every_item_is_done_once() {
  for (int num_threads = 1; num_threads <= 5; ++num_threads) {
    ThreadPool pool(num_threads);
    for (const std::int64_t num_items : {0, 1, 2, 3, 4, 7, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 5000}) {
        std::vector<int> times_done(static_cast<std::size_t>(num_items), 0);
        pool.run([&](Worker& worker) {
          worker.parallel_for(num_items, grain, [&](std::int64_t begin, std::int64_t end) {
            CHECK(0 <= begin && begin < end && end <= num_items);
            for (std::int64_t i = begin; i < end; ++i) ++times_done[static_cast<std::size_t>(i)];
          });
        });
        for (const int times : times_done) CHECK(times == 1);
      }
    }
  }
}

// Each phase reads what other threads wrote in the one before, without atomics: ThreadSanitizer
// sees a missing barrier, and so do the sums.
void phases_see_what_came_before() {
  constexpr std::int64_t kSize = 257;
  constexpr int kPhases = 200;
  ThreadPool pool(4);
  std::vector<std::int64_t> a(kSize, 1), b(kSize, 0);
  pool.run([&](Worker& worker) {
    for (int phase = 0; phase < kPhases; ++phase) {
      auto& from = phase % 2 == 0 ? a : b;
      auto& to = phase % 2 == 0 ? b : a;
      worker.parallel_for(kSize, 2, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          to[static_cast<std::size_t>(i)] = from[static_cast<std::size_t>(kSize - 1 - i)] + i;
        }
      });
    }
  });
  // Two phases add i + (kSize - 1 - i).
  for (const std::int64_t x : a) CHECK(x == 1 + kPhases / 2 * (kSize - 1));
}

// Pauses longer than threads spin, so that both ways of waiting are taken.
void runs_follow_each_other() {
  ThreadPool pool(3);
  std::int64_t count = 0;
  for (int run = 0; run < 300; ++run) {
    if (run % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> num_workers{0};
    pool.run([&](Worker& worker) {
      num_workers.fetch_add(1, std::memory_order_relaxed);
      worker.parallel_for(1, 1, [&](std::int64_t, std::int64_t) { ++count; });
      if (run % 20 == 10 && worker.index() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      worker.parallel_for(1, 1, [&](std::int64_t, std::int64_t) { ++count; });
    });
    CHECK(num_workers == 3);
    CHECK(count == 2 * (run + 1));
  }
}

// Each thread is held in its first item until all have one. Then the first thread is held until
// others have done the rest of its share.
void threads_begin_with_their_share_and_help() {
  constexpr std::int64_t kItems = 13;
  for (const int num_threads : {2, 3}) {
    ThreadPool pool(num_threads);
    std::atomic<int> num_begun{0};
    std::atomic<std::int64_t> num_done{0};
    pool.run([&](Worker& worker) {
      bool is_first = true;
      worker.parallel_for(kItems, 1, [&](std::int64_t begin, std::int64_t) {
        if (is_first) {
          CHECK(begin == kItems * worker.index() / num_threads + (worker.index() > 0));
          ++num_begun;
          while (num_begun < num_threads) std::this_thread::yield();
        }
        is_first = false;
        while (begin == 0 && num_done < kItems - 1) std::this_thread::yield();
        ++num_done;
      });
    });
    CHECK(num_done == kItems);
  }
}

// Other processes have the cores while a thread waits for long: for an item, or for a run.
void threads_that_wait_are_parked() {
  ThreadPool pool(3);
  const auto rest = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
  const std::clock_t begin = std::clock();  // processor time of all threads
  pool.run([&](Worker& worker) {
    worker.parallel_for(1, 1, [&](std::int64_t, std::int64_t) { rest(); });
  });
  rest();
  CHECK(std::clock() - begin < CLOCKS_PER_SEC / 20);
}

void alone_is_on_the_callers_thread() {
  ThreadPool pool(3);
  std::int64_t sum = 0;  // no atomic: nobody else comes
  pool.run_alone([&](Worker& worker) {
    CHECK(worker.num_threads() == 1 && worker.index() == 0);
    worker.parallel_for(10, 3, [&](std::int64_t begin, std::int64_t end) {
      CHECK(end - begin <= 3);
      for (std::int64_t i = begin; i < end; ++i) sum += i;
    });
  });
  CHECK(sum == 45);
}

void pool_is_resized() {
  ThreadPool pool(4);
  std::int64_t sum = 0;
  for (const int num_threads : {4, 2, 1, 3, 3, 4}) {
    pool.resize(num_threads);
    CHECK(pool.num_threads() == num_threads && pool.max_threads() == 4);
    for (int run = 0; run < 20; ++run) {
      std::atomic<int> num_workers{0};
      std::atomic<std::int64_t> num_items{0};
      pool.run([&](Worker& worker) {
        CHECK(worker.num_threads() == num_threads);
        num_workers.fetch_add(1, std::memory_order_relaxed);
        worker.parallel_for(100, 7, [&](std::int64_t begin, std::int64_t end) {
          num_items.fetch_add(end - begin, std::memory_order_relaxed);
        });
        worker.parallel_for(1, 1, [&](std::int64_t, std::int64_t) { ++sum; });
      });
      CHECK(num_workers == num_threads && num_items == 100);
    }
  }
  CHECK(sum == 6 * 20);
}

void callers_take_turns() {
  ThreadPool pool(2);
  std::int64_t count = 0;  // no atomic: runs exclude each other
  const auto call = [&] {
    for (int run = 0; run < 200; ++run) {
      pool.run([&](Worker& worker) {
        worker.parallel_for(1, 1, [&](std::int64_t, std::int64_t) { ++count; });
      });
    }
  };
  std::thread other(call);
  call();
  other.join();
  CHECK(count == 400);
}

void forked_process_is_told() {
  ThreadPool pool(2);
  const pid_t child = fork();
  if (child == 0) {
    int num_told = 0;
    for (const bool is_alone : {false, true}) {
      try {
        is_alone ? pool.run_alone([](Worker&) {}) : pool.run([](Worker&) {});
      } catch (const std::runtime_error&) {
        ++num_told;
      }
    }
    try {
      alarm(20);  // ends a child that waits for threads
      pool.resize(1);
    } catch (const std::runtime_error&) {
      ++num_told;
    }
    _exit(num_told == 3 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  every_item_is_done_once();
  phases_see_what_came_before();
  runs_follow_each_other();
  threads_begin_with_their_share_and_help();
  threads_that_wait_are_parked();
  alone_is_on_the_callers_thread();
  pool_is_resized();
  callers_take_turns();
  forked_process_is_told();
  std::printf("ok\n");
}
