// While attention computes over a range of keys, it prefetches the next one: a share at each step,
// of as many steps as it told the prefetcher. No result shows that.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "kernels/tile_prefetcher.h"
#include "kv_cache.h"

namespace pellucid {
namespace {

std::int64_t num_steps_told, num_steps_taken;

struct CountedSteps {
  CountedSteps(const KVView&, const KeyRange&, std::int64_t num_steps) {
    num_steps_told += num_steps;
  }
  void step() { ++num_steps_taken; }
};

}  // namespace
}  // namespace pellucid

#define TilePrefetcher CountedSteps
#include "kernels/attention_table.h"
#include "kernels/simd_portable.h"

namespace {

using namespace pellucid;

constexpr AttentionKernels kKernels = attention_kernels<Simd, 2, 2, 1>();
constexpr std::int64_t kBlockSize = 64;

void each_step_prefetches(KVFormat format, std::int64_t head_dim, std::int64_t num_rows) {
  KVCache cache({format, kBlockSize, {{1, 1, head_dim}}}, 1);
  const KVView kv = cache.layer({0});
  const auto size = static_cast<std::size_t>(num_rows * kv.padded_dim);
  std::vector<float> queries(size), scales(size), max(size), total(size), values(size);
  std::vector<std::int32_t> starts(size);
  const QueryRows rows{queries.data(), scales.data(), starts.data(), num_rows, 1, kBlockSize};
  KeyRange keys{};
  for (; keys.num_tiles < kBlockSize / kTileTokens; ++keys.num_tiles) {
    keys.tiles[keys.num_tiles] = kv.tile(0, 0, keys.num_tiles);
  }
  num_steps_told = num_steps_taken = 0;
  kKernels.kernels[static_cast<int>(format)].attend(kv, rows, keys, {}, {1.0f, 0.0f, 0},
                                                    {max.data(), total.data(), values.data()});
  CHECK(num_steps_taken > 0 && num_steps_taken == num_steps_told);
}

}  // namespace

int main() {
  for (int format = 0; format < kNumKVFormats; ++format) {
    for (const std::int64_t head_dim : {16, 32, 40, 64}) {
      for (const std::int64_t num_rows : {1, 2, 4}) {
        each_step_prefetches(static_cast<KVFormat>(format), head_dim, num_rows);
      }
    }
  }
  std::printf("ok\n");
}
