// Elementwise and recurrent kernels give known bits, the same ones on every level and machine, for
// any number of columns, and write nothing behind them. What they compute is compared with the
// definition in tests/native/test_ops.py and test_recurrences.py.
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <random>
#include <vector>

#include "check.h"
#include "isa.h"

namespace {

using namespace pellucid;

constexpr std::int64_t kMostColumns = 1000, kNumbers = 8 * kMostColumns;
constexpr float kUntouched = 1234.5f;

// Small and large, of both signs; between groups of 64 zeros of both signs and a subnormal number.
std::vector<float> random_numbers(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < kNumbers; ++i) {
    const float factor[] = {0.5f, 4.0f, 30.0f, 300.0f};
    numbers.push_back(factor[i % 4] * (static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f));
    if (i % 64 == 61) numbers.back() = 0.0f;
    if (i % 64 == 62) numbers.back() = -0.0f;
    if (i % 64 == 63) numbers.back() = 0x1p-130f;
  }
  return numbers;
}

// FNV-1a.
std::uint64_t hashed(std::uint64_t hash, const float* numbers, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, numbers + i, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

// Computes `size` columns from x [kNumbers] and w [kNumbers]; returns how many numbers of y.
using Call =
    std::function<std::int64_t(std::int64_t size, const float* x, const float* w, float* y)>;

std::uint64_t hash_of(const Call& call) {
  const std::vector<float> x = random_numbers(0), w = random_numbers(1);
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::int64_t size : {1, 2, 15, 16, 17, 32, 40, 64, 999, 1000}) {
    std::vector<float> y(kNumbers, kUntouched);
    const std::int64_t num_written = call(size, x.data(), w.data(), y.data());
    CHECK(num_written <= kNumbers - 64);
    hash = hashed(hash, y.data(), num_written);
    CHECK(std::count(y.begin() + num_written, y.end(), kUntouched) == kNumbers - num_written);
  }
  return hash;
}

struct Known {
  const char* name;
  std::uint64_t hash;
  Call call;
};

// A function of one array.
template <class F>
Call columns(F f, std::int64_t factor = 1) {
  return [=](std::int64_t size, const float* x, const float*, float* y) {
    f(x, factor * size, y);
    return factor * size;
  };
}

Call convolution(const KernelTable& kernels, bool has_bias) {
  return [&kernels, has_bias](std::int64_t size, const float* x, const float* w, float* y) {
    constexpr std::int64_t kRows = 2, kKernel = 3;
    float* const state = y + kRows * size;  // two rows behind those of y
    std::copy_n(w, (kKernel - 1) * size, state);
    kernels.recurrence.convolve({x, size}, kRows, {w, size},
                                has_bias ? w + kKernel * size : nullptr, kKernel, size,
                                {state, size}, {y, size});
    return (kRows + kKernel - 1) * size;
  };
}

Call delta_rule(const KernelTable& kernels) {
  return [&kernels](std::int64_t size, const float* x, const float* w, float* y) {
    constexpr std::int64_t kKeyDim = 5;
    const std::int64_t columns = (size % 64 + kDeltaColumns - 1) / kDeltaColumns * kDeltaColumns;
    float* const state = y + columns;
    std::transform(x, x + kKeyDim * columns, state, [](float number) { return 0x1p-10f * number; });
    kernels.recurrence.delta({state, columns}, kKeyDim, columns,
                             {w, w + kKeyDim, x + 100, 0.75f, 0.375f}, y);
    return (1 + kKeyDim) * columns;
  };
}

Call routed(const KernelTable& kernels, RouterScores scores, bool has_bias) {
  return [&kernels, scores, has_bias](std::int64_t size, const float* x, const float* w, float* y) {
    kernels.elementwise.route(x, has_bias ? w : nullptr,
                              {scores, size, std::min<std::int64_t>(size, 7), has_bias, 1.5f}, y);
    return size;
  };
}

std::vector<Known> known_of(const KernelTable& kernels) {
  const ElementwiseKernels& own = kernels.elementwise;
  const auto gated = [&](int function) -> Call {
    return [f = own.gated_activate[function]](std::int64_t size, const float* x, const float*,
                                              float* y) {
      f(x, size, y);
      return size;
    };
  };
  const auto multiplied = [&](int function) -> Call {
    return
        [f = own.multiply[function]](std::int64_t size, const float* x, const float* w, float* y) {
          f(x, w, false, size, y);
          f(x, w, true, size, y + size);
          return 2 * size;
        };
  };
  const auto number = [](auto f) -> Call {
    return [f](std::int64_t size, const float* x, const float*, float* y) {
      *y = f(x, size);
      return std::int64_t{1};
    };
  };
  return {
      {"rms_norm", 0x8c4669e92e4160cc,
       [&](std::int64_t size, const float* x, const float* w, float* y) {
         own.rms_norm(x, w, 1e-5f, 3, size, y);
         return 3 * size;
       }},
      {"layer_norm", 0x607083031a91dcc4,
       [&](std::int64_t size, const float* x, const float* w, float* y) {
         own.layer_norm(x, w, w + size, 1e-5f, 3, size, y);
         return 3 * size;
       }},
      {"rope", 0xdec44b592709f52a,
       [&](std::int64_t size, const float* x, const float* w, float* y) {
         own.rope(x, w, w + size, 3, size + 6, size / 2 * 2, y);
         return 3 * (size + 6);
       }},
      {"silu", 0xca66aaaa14ea8eb1, columns(own.activate[0])},
      {"gelu", 0x9c5bb432357f6341, columns(own.activate[1])},
      {"gelu_tanh", 0xebbea1ce4fd5a5ba, columns(own.activate[2])},
      {"clamped_swish", 0x54310467ebad67bf, columns(own.activate[3])},
      {"gated silu", 0xc97ba0d46c2c01e9, gated(0)},
      {"gated gelu", 0x450e714aac77841d, gated(1)},
      {"gated gelu_tanh", 0x1df210865e528052, gated(2)},
      {"gated clamped_swish", 0xc61d141eae3dc4fa, gated(3)},
      {"times identity", 0x6c84c4e2d82ce205, multiplied(0)},
      {"times sigmoid", 0x52242160c3ecb5b9, multiplied(1)},
      {"times silu", 0x08cb034dfdf07627, multiplied(2)},
      {"times gelu_tanh", 0xabab3cbb32671623, multiplied(3)},
      {"square_sum", 0x407a8f617dd6c586, number(own.square_sum)},
      {"largest", 0x185b23abb52499a9, number(own.largest)},
      {"add", 0x53b7394b85d576df,
       [&](std::int64_t size, const float* x, const float* w, float* y) {
         own.add(x, w, size, y);
         return size;
       }},
      {"scale", 0xd17a1dcf23545f05,
       [&](std::int64_t size, const float* x, const float*, float* y) {
         own.scale(x, 1.7f, size, y);
         return size;
       }},
      {"softcap", 0xf8cdf9f19df97b46,
       [&](std::int64_t size, const float* x, const float*, float* y) {
         own.softcap(x, 20.0f, size, y);
         return size;
       }},
      {"weighted_sum", 0x39daeece13fee7b6,
       [&](std::int64_t size, const float* x, const float* w, float* y) {
         const float* const rows[] = {x, x + size, w};
         own.weighted_sum(rows, w + 7, 3, size, false, y);
         own.weighted_sum(rows, w + 9, 2, size, true, y);
         return size;
       }},
      {"softmax router", 0xeee277f4ec34a57f, routed(kernels, RouterScores::kSoftmax, false)},
      {"softmax router with biases", 0x4b40f28cb46e96fa,
       routed(kernels, RouterScores::kSoftmax, true)},
      {"router of the chosen", 0x576843eba0d61482,
       routed(kernels, RouterScores::kSoftmaxChosen, false)},
      {"sigmoid router", 0xf39961f353e8c660, routed(kernels, RouterScores::kSigmoid, true)},
      {"convolution", 0x686eb978bac913f7, convolution(kernels, false)},
      {"convolution with biases", 0xbe99bc6e06a8496c, convolution(kernels, true)},
      {"delta rule", 0x29ea096831e4f516, delta_rule(kernels)},
  };
}

}  // namespace

int main() {
  bool are_known = true;
  for (const KernelTable* kernels : supported_kernel_tables()) {
    for (const Known& known : known_of(*kernels)) {
      const std::uint64_t hash = hash_of(known.call);
      if (hash == known.hash) continue;
      std::fprintf(stderr, "%s: %s gives 0x%016" PRIx64 "\n", kernels->isa, known.name, hash);
      are_known = false;
    }
  }
  CHECK(are_known);
  std::printf("ok\n");
}
