// What a thread does while it waits for another one: pauses, looks at the clock, yields.
#include <chrono>
#include <cstdio>
#include <initializer_list>

#include "check.h"
#include "patience.h"

namespace {

struct Counts {
  int pauses, looks, yields;

  bool operator==(const Counts& other) const {
    return pauses == other.pauses && looks == other.looks && yields == other.yields;
  }
};

Counts counts;

// Each look at the clock takes a microsecond.
struct Counted {
  using Time = std::chrono::time_point<std::chrono::steady_clock, std::chrono::microseconds>;

  static void pause() { ++counts.pauses; }
  static void yield() { ++counts.yields; }
  static Time now() { return Time(std::chrono::microseconds(counts.looks++)); }
};

// Spins for 50 microseconds, and looks at the clock at every 32nd pause; then yields until half a
// millisecond is over.
void waits_end_soon() {
  struct Case {
    int over_at;  // the question that is answered with yes
    Counts wanted;
  };
  for (const Case& own : {Case{1, {0, 0, 0}},
                          {2, {1, 1, 0}},
                          {33, {32, 1, 0}},
                          {34, {33, 2, 0}},
                          {1601, {1600, 50, 0}},
                          {1602, {1600, 51, 1}},
                          {2051, {1600, 500, 450}}}) {
    counts = {};
    int num_questions = 0;
    CHECK(pellucid::ends_soon<Counted>([&] { return ++num_questions == own.over_at; }));
    CHECK(counts == own.wanted);
  }
  counts = {};
  CHECK(!pellucid::ends_soon<Counted>([] { return false; }));
  CHECK((counts == Counts{1600, 501, 450}));
}

void patience_ends() {
  counts = {};
  pellucid::PatienceBy<Counted> patience;
  for (int i = 0; i < 2005; ++i) patience.wait();
  CHECK((counts == Counts{1999, 0, 6}));
}

}  // namespace

int main() {
  waits_end_soon();
  patience_ends();
  std::printf("ok\n");
}
