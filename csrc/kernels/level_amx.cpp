// The kernels for x86 processors with AMX: those for AVX-512, but for linear layers in bf16.
#include "../kernel_table.h"
#include "amx_bf16.h"

namespace pellucid {

extern const KernelTable kAvx512Kernels;

namespace {

constexpr int kNumSums = 4;

// Operations of tiles in registers; loads and stores of tiles not among them.
std::int64_t peak_bf16(std::int64_t num_rounds) {
  TileConfig(16).load();
  for (std::int64_t round = 0; round < num_rounds; ++round) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return num_rounds * kNumSums * 16 * 16 * 32 * 2;
}

}  // namespace

const KernelTable& amx_kernels();
const KernelTable& amx_kernels() {
  static const KernelTable table = [] {
    KernelTable kernels = kAvx512Kernels;
    kernels.isa = "amx";
    LinearKernel& bf16 =
        kernels.linear
            .kernels[static_cast<int>(Format::kBF16)][static_cast<int>(Activations::kNative)];
    bf16.compute = &AmxBF16::compute;
    bf16.rows_per_block = 256;
    kernels.peaks.bf16 = &peak_bf16;
    return kernels;
  }();
  return table;
}

}  // namespace pellucid
