// The kernels that measure the peak (peak_kernels.h), written once for all levels.
#pragma once

#include <cstdint>

#include "peak_kernels.h"

namespace pellucid {
namespace {

// Enough chains to hide the latency of an instruction that starts once or twice a cycle.
constexpr int kNumChains = 12;

// Makes the compiler assume that memory changes between rounds and that results are used.
inline void forget_memory() { __asm__ volatile("" ::: "memory"); }
template <class T>
inline void look_at(const T& value) {
  __asm__ volatile("" ::"m"(value) : "memory");
}

// Chains of `next(sum, factor)`; each round loads the factor again. The chains start with different
// numbers, or the compiler would compute only one of them.
template <class Start, class Load, class Next>
inline __attribute__((always_inline)) void run_chains(std::int64_t num_rounds, Start start,
                                                      Load load, Next next) {
  using Sum = decltype(start(0));
  Sum sums[kNumChains];
#pragma GCC unroll 16
  for (int i = 0; i < kNumChains; ++i) sums[i] = start(i);
  for (std::int64_t round = 0; round < num_rounds; ++round) {
    forget_memory();
    const auto factor = load();
#pragma GCC unroll 16
    for (int i = 0; i < kNumChains; ++i) sums[i] = next(sums[i], factor);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kNumChains; ++i) {
    const Sum sum = sums[i];  // a copy, so that no address keeps `sums` out of registers
    look_at(sum);
  }
}

template <class S>
std::int64_t peak_int8(std::int64_t num_rounds) {
  const std::int8_t ones[4] = {1, 1, 1, 1};
  run_chains(
      num_rounds, [](int i) { return S::broadcast_i32(i); },
      [&] { return S::broadcast_quad(ones); },
      [](auto sum, auto x) { return S::template dot<8>(sum, x, x); });
  return num_rounds * kNumChains * S::kLanes * 8;
}

template <class S>
std::int64_t peak_bf16(std::int64_t num_rounds) {
  const std::uint16_t ones[2] = {0x3f80, 0x3f80};
  run_chains(
      num_rounds, [](int i) { return S::broadcast(static_cast<float>(i)); },
      [&] { return S::broadcast_pair(ones); },
      [](auto sum, auto x) { return S::dot_bf16(sum, x, x); });
  return num_rounds * kNumChains * S::kLanes * 4;
}

template <class S>
std::int64_t peak_f32(std::int64_t num_rounds) {
  const float one = 1.0f;
  run_chains(
      num_rounds, [](int i) { return S::broadcast(static_cast<float>(i)); },
      [&] { return S::broadcast(one); }, [](auto sum, auto x) { return S::fma(x, x, sum); });
  return num_rounds * kNumChains * S::kLanes * 2;
}

template <class S>
void peak_read(const void* bytes, std::int64_t num_bytes) {
  constexpr int kNumStreams = 4;
  constexpr std::int64_t kVectorBytes = 4 * S::kLanes;
  const std::int64_t stream_bytes = num_bytes / kNumStreams;
  const auto* const p = static_cast<const std::uint8_t*>(bytes);
  typename S::I32 seen[kNumStreams];
  for (auto& vector : seen) vector = S::zero_i32();
  for (std::int64_t i = 0; i < stream_bytes; i += kVectorBytes) {
#pragma GCC unroll 4
    for (int s = 0; s < kNumStreams; ++s) {
      seen[s] = S::max_abs_bits(seen[s],
                                S::load(reinterpret_cast<const float*>(p + s * stream_bytes + i)));
    }
  }
  look_at(seen);
}

template <class S>
constexpr PeakKernels peak_kernels() {
  return {&peak_int8<S>, &peak_bf16<S>, &peak_f32<S>, &peak_read<S>};
}

}  // namespace
}  // namespace pellucid
