// FetchLine: what the prefetchers of kernels do with the address of a cache line. Tests count
// addresses in its place.
#pragma once

namespace pellucid {
namespace {

// Into the second-level cache: the first-level cache is left to the computation.
struct FetchLine {
  inline __attribute__((always_inline)) void operator()(const void* address) const {
    __builtin_prefetch(address, 0, 2);
  }
};

}  // namespace
}  // namespace pellucid
