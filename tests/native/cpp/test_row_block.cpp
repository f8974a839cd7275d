// RowBlock: a thread that stalls between looking at a ticket and taking it takes nothing that it
// would refuse.
#include <cstdint>
#include <cstdio>

#include "check.h"
#include "row_block.h"

namespace {

using pellucid::RowBlock;

constexpr auto one_piece = [](std::uint32_t) { return std::uint32_t{1}; };

// A helper of the segment [0, 1) has seen piece 0 of stage 0. While it stalls, the owner does that
// piece, leaves the segment and opens stage 1 of the next one, whose piece 0 is not the helper's.
void stalled_helper_leaves_the_next_segment_alone() {
  RowBlock block;
  block.open(0);
  bool has_stalled = false;
  const auto helped = block.take(0, 1, [&](std::uint32_t stage) {
    if (!has_stalled) {
      has_stalled = true;
      CHECK(block.take(0, 1, one_piece));
      block.finish_piece();
      block.wait_for(1);
      block.close(1);
      block.open(1);
    }
    return one_piece(stage);
  });
  CHECK(has_stalled && !helped);
  const auto owned = block.take(1, 2, one_piece);
  CHECK(owned && owned->stage == 1 && owned->number == 0);
}

// Within a segment it takes the piece that is next by now.
void stalled_helper_takes_what_is_next() {
  RowBlock block;
  block.open(0);
  bool has_stalled = false;
  const auto helped = block.take(0, 2, [&](std::uint32_t) {
    if (!has_stalled) {
      has_stalled = true;
      block.close(1);
      block.open(1);
      CHECK(block.take(0, 2, [](std::uint32_t) { return std::uint32_t{2}; }));
    }
    return std::uint32_t{2};
  });
  CHECK(helped && helped->stage == 1 && helped->number == 1);
  CHECK(!block.take(0, 2, [](std::uint32_t) { return std::uint32_t{2}; }));
}

}  // namespace

int main() {
  stalled_helper_leaves_the_next_segment_alone();
  stalled_helper_takes_what_is_next();
  std::printf("ok\n");
}
