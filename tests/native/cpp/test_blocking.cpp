// The order in which a linear layer takes its tiles, and what is prefetched meanwhile: work that no
// result shows.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "isa.h"
#include "kernels/linear_tiles.h"
#include "kernels/tile_prefetcher.h"
#include "linear.h"
#include "weight_prefetcher.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kLine = 64;
std::uint8_t memory[1 << 21];  // whose addresses are prefetched
std::vector<std::int64_t> fetched;

struct NoteAddress {
  void operator()(const void* address) const {
    fetched.push_back(static_cast<const std::uint8_t*>(address) - memory);
  }
};

std::vector<std::int64_t> lines_of(std::int64_t begin, std::int64_t num_bytes) {
  std::vector<std::int64_t> lines;
  for (std::int64_t at = 0; at < num_bytes; at += kLine) lines.push_back(begin + at);
  return lines;
}

// What a call fetches.
template <class F>
std::vector<std::int64_t> fetched_by(F&& call) {
  fetched.clear();
  call();
  return fetched;
}

bool begins_with(const std::vector<std::int64_t>& numbers, const std::vector<std::int64_t>& begin) {
  return numbers.size() >= begin.size() && std::equal(begin.begin(), begin.end(), numbers.begin());
}

void streams_are_prefetched_evenly() {
  for (const std::int64_t num_bytes : {0, 1, 64, 65, 640, 10000}) {
    for (const std::int64_t num_steps : {1, 3, 5, 1000}) {
      StreamPrefetcherBy<NoteAddress> ahead(memory + 128, num_bytes, num_steps);
      const std::vector<std::int64_t> lines = lines_of(128, num_bytes);
      const auto num_lines = static_cast<std::int64_t>(lines.size());
      const std::int64_t share = (num_lines + num_steps - 1) / num_steps;
      std::vector<std::int64_t> all;
      for (std::int64_t step = 0; step < num_steps + 2; ++step) {
        const std::vector<std::int64_t> own = fetched_by([&] { ahead.step(); });
        const bool is_done = static_cast<std::int64_t>(all.size()) >= num_lines;
        CHECK(static_cast<std::int64_t>(own.size()) == (is_done ? 0 : share));
        all.insert(all.end(), own.begin(), own.end());
      }
      CHECK(begins_with(all, lines));
    }
  }
}

void tiles_are_prefetched_evenly() {
  constexpr std::int64_t kTiles = 3, kTileLines = 10;
  KVView kv{};
  kv.tile_bytes = kTileLines * kLine;
  KeyRange range{};
  range.num_tiles = kTiles;
  for (std::int64_t t = 0; t < kTiles; ++t) range.tiles[t] = memory + (kTiles - t) * 4096;
  for (const std::int64_t num_steps : {3, 7, 29, 30, 100}) {
    const std::int64_t share = (kTiles * kTileLines + num_steps - 1) / num_steps;
    TilePrefetcherBy<NoteAddress> ahead(kv, range, num_steps);
    for (std::int64_t t = 0; t < kTiles; ++t) {
      const std::vector<std::int64_t> lines = lines_of((kTiles - t) * 4096, kv.tile_bytes);
      std::vector<std::int64_t> all;
      while (all.size() < lines.size()) {
        const std::vector<std::int64_t> own = fetched_by([&] { ahead.step(); });
        CHECK(static_cast<std::int64_t>(own.size()) == share);
        all.insert(all.end(), own.begin(), own.end());
      }
      CHECK(begins_with(all, lines));
    }
    CHECK(fetched_by([&] { ahead.step(); }).empty());
  }
}

void the_beginning_of_weights_is_prefetched_once() {
  WeightPrefetcherBy<NoteAddress> prefetcher;
  CHECK(!prefetcher());
  const auto all_of = [&](const WeightSpan& weights) {
    return fetched_by([&] {
      prefetcher.turn_to(weights);
      while (prefetcher()) {
      }
    });
  };
  const std::int64_t four_lines = 4 * kLine;
  CHECK(all_of({memory, four_lines}) == lines_of(0, four_lines));
  CHECK(all_of({memory, four_lines}).empty());
  CHECK(all_of({memory + 4096, four_lines + 1}) == lines_of(4096, 2 * four_lines));
  CHECK(all_of({memory, sizeof(memory)}) == lines_of(0, 256 << 10));
  prefetcher.turn_to({memory + 4096, sizeof(memory)});
  CHECK(fetched_by([&] { CHECK(prefetcher()); }) == lines_of(4096, four_lines));
  prefetcher.turn_to({memory + 4096, sizeof(memory)});  // goes on
  CHECK(fetched_by([&] { CHECK(prefetcher()); }) == lines_of(4096 + four_lines, four_lines));
}

// What a tile is told to prefetch.
struct Ahead {
  Ahead(const std::uint8_t* bytes, std::int64_t num_bytes, std::int64_t num_steps)
      : begin(bytes - memory), num_bytes(num_bytes), num_steps(num_steps) {}

  std::int64_t begin, num_bytes, num_steps;
};

struct TileCall {
  std::int64_t row, num_rows;
  Panels panels;
  Ahead ahead;
};

std::vector<TileCall> calls;

struct NotedTile {
  static constexpr int kMaxRows = 4;

  static std::int64_t num_steps(const PackedView&, int num_rows) { return 100 + num_rows; }
  template <int kRows>
  static void run(const PackedView&, const Panels& panels, const PreparedRows&, std::int64_t row,
                  Ahead& ahead, const LinearOutput&) {
    calls.push_back({row, kRows, panels, ahead});
  }
};

constexpr std::int64_t kRowBegin = 3, kPanelBegin = 2;

void compute(std::int64_t panel_bytes, std::int64_t num_panels, std::int64_t num_rows,
             std::int64_t panel_end) {
  calls.clear();
  const PackedView w{memory, panel_bytes, num_panels * kPanelOutputs - 1, 0, 0};
  compute_panels<NotedTile, Ahead>(w, {}, kRowBegin, kRowBegin + num_rows, kPanelBegin, panel_end,
                                   {});
}

// Each tile of rows meets a block of weights, which fits into a second-level cache, before the next
// block comes. Meanwhile it prefetches its share of the block behind.
void many_rows_read_weights_from_the_cache() {
  constexpr std::int64_t kPanels = 23, kEnd = 20;
  struct Blocks {
    std::int64_t panel_bytes, panels_of_block;
    bool are_prefetched;
  };
  for (const Blocks& own : {Blocks{10000, 6, true},
                            {16384, 4, true},
                            {65536, 1, true},
                            {80000, 1, true},
                            {393216, 1, true},
                            {393280, 1, false}}) {
    for (const std::int64_t num_rows : {2, 4, 5, 8, 11}) {
      compute(own.panel_bytes, kPanels, num_rows, kEnd);
      const std::int64_t num_tiles = (num_rows + 3) / 4;
      std::size_t at = 0;
      for (std::int64_t begin = kPanelBegin; begin < kEnd; begin += own.panels_of_block) {
        const std::int64_t end = std::min(begin + own.panels_of_block, kEnd);
        std::int64_t row = kRowBegin;
        std::vector<std::int64_t> prefetched_to(kPanels, 0);  // bytes of each panel
        for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
          for (std::int64_t panel = begin; panel < end; ++panel) {
            const TileCall& call = calls.at(at++);
            CHECK(call.row == row && call.panels.first == panel && call.panels.count == 1);
            CHECK(num_rows / num_tiles <= call.num_rows);
            CHECK(call.num_rows <= (num_rows + num_tiles - 1) / num_tiles);
            CHECK(call.ahead.num_steps == 100 + call.num_rows);
            const std::int64_t next = panel + own.panels_of_block;
            if (num_tiles == 1 || !own.are_prefetched || next >= kPanels) {
              CHECK(call.ahead.num_bytes == 0);
              continue;
            }
            std::int64_t& done = prefetched_to[static_cast<std::size_t>(next)];
            CHECK(call.ahead.begin == next * own.panel_bytes + done);
            done += call.ahead.num_bytes;
          }
          row += calls[at - 1].num_rows;
        }
        CHECK(row == kRowBegin + num_rows);
        for (const std::int64_t done : prefetched_to) {
          CHECK(done == 0 || (own.panel_bytes <= done && done < own.panel_bytes + num_tiles));
        }
      }
      CHECK(at == calls.size());
    }
  }
}

// One row takes several panels side by side, in streams that the processor follows.
void one_row_reads_several_streams() {
  constexpr std::int64_t kPanels = 23, kEnd = 20;
  for (const std::int64_t panel_bytes : {1000, 70000}) {
    compute(panel_bytes, kPanels, 1, kEnd);
    std::int64_t panel = kPanelBegin;
    for (const TileCall& call : calls) {
      CHECK(call.row == kRowBegin && call.num_rows == 1 && call.panels.first == panel);
      CHECK(call.panels.count == std::min(kPanelsAbreast, kEnd - panel));
      CHECK(call.ahead.num_bytes == 0);
      panel += call.panels.count;
    }
    CHECK(panel == kEnd);
  }
}

// Panels that a thread takes at a time, in a step of many rows and of few; memory for 1 and 2 rows.
void pieces_and_memory_follow_the_sizes_of_weights() {
  struct Case {
    Format format;
    std::int64_t num_inputs, of_many_rows, of_few_rows;
    std::size_t bytes_of_row, bytes_of_two;
  };
  for (const Case& own : {Case{Format::kF32, 32, 16, 16, 576, 1152},
                          {Format::kF32, 1000, 1, 4, 4160, 8320},
                          {Format::kF32, 20000, 1, 1, 80448, 160896},
                          {Format::kBF16, 1000, 1, 4, 2112, 4224},
                          {Format::kInt8Channel, 1000, 1, 4, 1088, 2176},
                          {Format::kInt8, 4096, 1, 3, 5184, 10368},
                          {Format::kInt4, 4096, 1, 4, 5184, 10368}}) {
    const PackedMatrix w(own.format, 1000, own.num_inputs);
    CHECK(panels_per_grab(w) == own.of_many_rows);
    CHECK(panels_per_grab_of_few_rows(w) == own.of_few_rows);
    CHECK(linear_scratch_bytes(w, 1) == own.bytes_of_row);
    CHECK(linear_scratch_bytes(w, 2) == own.bytes_of_two);
  }
}

// What a machine's peak is computed from.
void peaks_count_their_operations() {
  for (const KernelTable* kernels : supported_kernel_tables()) {
    for (const auto peak : {kernels->peaks.f32, kernels->peaks.bf16, kernels->peaks.int8}) {
      CHECK(peak(3) > 0 && peak(9) == 3 * peak(3));
    }
    CHECK(kernels->peaks.int8(1) == 4 * kernels->peaks.f32(1));
  }
}

}  // namespace

int main() {
  pieces_and_memory_follow_the_sizes_of_weights();
  peaks_count_their_operations();
  streams_are_prefetched_evenly();
  tiles_are_prefetched_evenly();
  the_beginning_of_weights_is_prefetched_once();
  many_rows_read_weights_from_the_cache();
  one_row_reads_several_streams();
  std::printf("ok\n");
}
