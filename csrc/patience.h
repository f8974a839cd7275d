// How a thread waits for another one: it spins, then yields its core, then may be parked.
#pragma once

#include <chrono>
#include <thread>

namespace pellucid {

// What a thread does while it waits. Tests count in its place.
struct Waiting {
  using Time = std::chrono::steady_clock::time_point;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // takes as long as x86's pause; Arm's yield is a no-op
#endif
  }
  static void yield() { std::this_thread::yield(); }
  static Time now() { return std::chrono::steady_clock::now(); }
};

// Waits for a thread that is about to finish, unless the system has taken its core away: spins
// first, then yields the core.
template <class Doing>
class PatienceBy {
 public:
  void wait() {
    if (++num_waits_ < kMaxPauses) {
      Doing::pause();
    } else {
      Doing::yield();
    }
  }

 private:
  static constexpr int kMaxPauses = 2000;  // some tens of microseconds

  int num_waits_ = 0;
};

using Patience = PatienceBy<Waiting>;

// Longer than the difference between threads in a phase, shorter than a time slice: a thread that
// spins keeps other processes off its core.
constexpr std::chrono::microseconds kSpinTime{50};

// Longer than the engine takes between two steps of a small model, because waking a parked thread
// takes some 30 microseconds. Other processes can use the core meanwhile.
constexpr std::chrono::microseconds kYieldTime{500};

constexpr int kPausesPerLookAtTheClock = 32;

// Whether `is_over` becomes true within kYieldTime: spins, then yields the core.
template <class Doing, class IsOver>
bool ends_soon(IsOver&& is_over) {
  if (is_over()) return true;
  const auto begin = Doing::now();
  do {
    for (int i = 0; i < kPausesPerLookAtTheClock; ++i) {
      Doing::pause();
      if (is_over()) return true;
    }
  } while (Doing::now() < begin + kSpinTime);
  do {
    Doing::yield();
    if (is_over()) return true;
  } while (Doing::now() < begin + kYieldTime);
  return false;
}

}  // namespace pellucid
