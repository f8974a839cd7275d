// Linear layers of every format and instruction set level against their definition in f64, and the
// promise that a row's bits depend on nothing but the row.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "float_bits.h"
#include "isa.h"
#include "linear.h"

namespace {

using namespace pellucid;

void check(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

constexpr double kUnitRoundoff = 0x1p-24;  // of f32, rounding to nearest

std::uint16_t bf16_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A random matrix in the layout of files, and what it stands for.
struct Weights {
  Format format;
  std::int64_t n, k, num_groups;
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> scales;  // bytes of f16, s8 or f32
  std::vector<std::uint8_t> zero_points;
  std::vector<std::uint8_t> minimums;  // bytes of f16 or s8
  std::vector<std::uint16_t> scale_factors, minimum_factors;

  WeightSource source() const {
    return {bytes.data(),    scales.data(),        zero_points.data(),
            minimums.data(), scale_factors.data(), minimum_factors.data()};
  }
  WeightTarget target() {
    return {bytes.data(),    scales.data(),        zero_points.data(),
            minimums.data(), scale_factors.data(), minimum_factors.data()};
  }
  std::int64_t group_of(std::int64_t input) const {
    const FormatInfo& info = format_info(format);
    return has_group_scales(info) ? input / info.tile_inputs : 0;
  }
  double scale(std::int64_t output, std::int64_t input) const {
    return scale_in(scales, scale_factors, output, input);
  }
  // Of integer formats: code - zero point.
  int level(std::int64_t output, std::int64_t input) const {
    const std::int64_t row_bytes = static_cast<std::int64_t>(bytes.size()) / n;
    const std::uint8_t* const row = bytes.data() + output * row_bytes;
    if (source_bits(format_info(format)) == 8) return static_cast<std::int8_t>(row[input]);
    const int code = row[input / 2] >> (4 * (input % 2)) & 15;
    if (has_codebook(format_info(format))) return codebook_of(format_info(format))[code];
    if (!minimums.empty()) return code;
    return code - (zero_points.empty() ? 8 : zero_points[output * num_groups + group_of(input)]);
  }
  double minimum(std::int64_t output, std::int64_t input) const {
    return minimums.empty() ? 0.0 : scale_in(minimums, minimum_factors, output, input);
  }
  double scale_in(const std::vector<std::uint8_t>& stored,
                  const std::vector<std::uint16_t>& factors, std::int64_t output,
                  std::int64_t input) const {
    const FormatInfo& info = format_info(format);
    const std::int64_t at = output * num_groups + group_of(input);
    if (has_channel_scales(info)) return double{reinterpret_cast<const float*>(stored.data())[at]};
    if (info.scale == ScaleKind::kExponent) {
      return stored[at] == 0 ? 0.0 : std::ldexp(1.0, stored[at] - 127);
    }
    if (!has_factors(info)) {
      return double{float_from_f16(reinterpret_cast<const std::uint16_t*>(stored.data())[at])};
    }
    const std::int64_t num_blocks = (k + kBlockInputs - 1) / kBlockInputs;
    return double{float_from_f16(factors[output * num_blocks + input / kBlockInputs])} *
           static_cast<std::int8_t>(stored[at]);
  }
  float rounded_value(std::int64_t output, std::int64_t input) const;
  double value(std::int64_t output, std::int64_t input) const {
    const std::int64_t at = output * k + input;
    switch (format) {
      case Format::kF32:
        return double{reinterpret_cast<const float*>(bytes.data())[at]};
      case Format::kF16:
        return double{float_from_f16(reinterpret_cast<const std::uint16_t*>(bytes.data())[at])};
      case Format::kBF16:
        return double{float_from_bf16(reinterpret_cast<const std::uint16_t*>(bytes.data())[at])};
      default:
        return level(output, input) * scale(output, input) + minimum(output, input);
    }
  }
};

// In f32: the product rounds before the minimum is added.
float Weights::rounded_value(std::int64_t output, std::int64_t input) const {
  if (minimums.empty()) return static_cast<float>(value(output, input));
  const auto product = static_cast<float>(level(output, input) * scale(output, input));
  return product + static_cast<float>(minimum(output, input));
}

std::uint16_t random_f16(std::mt19937& random) {
  // Any sign and mantissa, exponents of about 2^-10 .. 2^-3, now and then a subnormal.
  const std::uint32_t exponent = random() % 16 == 0 ? 0 : 5 + random() % 8;
  return static_cast<std::uint16_t>((random() & 0x83ff) | exponent << 10);
}

std::vector<std::uint16_t> random_f16s(std::int64_t size, std::mt19937& random) {
  std::vector<std::uint16_t> numbers(size);
  for (std::uint16_t& number : numbers) number = random_f16(random);
  return numbers;
}

// Bytes of scales or minimums as the format stores them.
std::vector<std::uint8_t> random_scales(const FormatInfo& info, std::int64_t size,
                                        std::mt19937& random) {
  std::vector<std::uint8_t> bytes;
  if (has_channel_scales(info)) {
    std::normal_distribution<float> normal;
    bytes.resize(size * sizeof(float));
    for (std::int64_t i = 0; i < size; ++i) {
      const float scale = normal(random) * 0.01f;
      std::memcpy(bytes.data() + i * sizeof(scale), &scale, sizeof(scale));
    }
  } else if (info.scale == ScaleKind::kExponent) {
    bytes.resize(size);
    for (std::uint8_t& scale : bytes) scale = static_cast<std::uint8_t>(random() % 16 + 112);
  } else if (has_factors(info)) {
    bytes.resize(size);
    for (std::uint8_t& scale : bytes) scale = static_cast<std::uint8_t>(random());
  } else {
    const std::vector<std::uint16_t> scales = random_f16s(size, random);
    bytes.resize(size * sizeof(scales[0]));
    std::memcpy(bytes.data(), scales.data(), bytes.size());
  }
  return bytes;
}

Weights random_weights(Format format, std::int64_t n, std::int64_t k, std::mt19937& random) {
  const FormatInfo& info = format_info(format);
  std::normal_distribution<float> normal;
  Weights w{format, n, k, 1, {}, {}, {}, {}, {}, {}};
  const std::int64_t row_bytes = (k * source_bits(info) + 7) / 8;
  w.bytes.resize(static_cast<std::size_t>(n * row_bytes));
  if (info.is_integer) {
    for (std::uint8_t& byte : w.bytes) byte = static_cast<std::uint8_t>(random());
    if (has_upper_bits(info)) {
      const int codes = 1 << info.weight_bits;
      for (std::uint8_t& byte : w.bytes) {
        byte = static_cast<std::uint8_t>(byte % codes - implied_zero_point(info));
      }
    }
    if (info.weight_bits == 4 && k % 2 == 1) {  // the half byte past the end of each row
      for (std::int64_t i = 1; i <= n; ++i) w.bytes[i * row_bytes - 1] &= 0x0f;
    }
    if (has_group_scales(info)) w.num_groups = (k + info.tile_inputs - 1) / info.tile_inputs;
    const std::int64_t num_factors = n * ((k + kBlockInputs - 1) / kBlockInputs);
    w.scales = random_scales(info, n * w.num_groups, random);
    if (has_factors(info)) w.scale_factors = random_f16s(num_factors, random);
    if (info.has_minimums) {
      w.minimums = random_scales(info, n * w.num_groups, random);
      if (has_factors(info)) w.minimum_factors = random_f16s(num_factors, random);
    }
    if (info.has_zero_points) {
      w.zero_points.resize(n * w.num_groups);
      for (std::uint8_t& zero_point : w.zero_points) zero_point = random() % 16;
    }
    return w;
  }
  for (std::int64_t i = 0; i < n * k; ++i) {
    const float x = normal(random);
    const std::uint16_t half = format == Format::kF16 ? random_f16(random) : bf16_bits(x);
    if (info.weight_bits == 32) std::memcpy(w.bytes.data() + 4 * i, &x, 4);
    if (info.weight_bits == 16) std::memcpy(w.bytes.data() + 2 * i, &half, 2);
  }
  return w;
}

PackedMatrix packed(const Weights& w, Activations activations = Activations::kNative) {
  PackedMatrix matrix(w.format, w.n, w.k, activations);
  const std::int64_t half = matrix.num_panels() / 2;  // in two parts, as threads do it
  matrix.pack(w.source(), half, matrix.num_panels());
  matrix.pack(w.source(), 0, half);
  return matrix;
}

std::vector<float> random_rows(std::int64_t num_rows, std::int64_t k, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(num_rows * k);
  for (float& value : x) value = normal(random) * (random() % 32 == 0 ? 20.0f : 1.0f);
  return x;
}

// One row of x as the definition sees it.
struct DefinedRow {
  std::vector<double> values;  // codes for integer formats
  std::vector<double> scales;  // per group
};

float max_abs(const float* x, std::int64_t begin, std::int64_t end) {
  float max = 0.0f;
  for (std::int64_t i = begin; i < end; ++i) max = std::max(max, std::fabs(x[i]));
  return max;
}

DefinedRow define_row(const float* x, const Weights& w, Activations activations) {
  const FormatInfo& info = format_info(w.format);
  DefinedRow row{{x, x + w.k}, {}};
  if (activations == Activations::kF32) return row;
  if (w.format == Format::kBF16) {
    for (double& value : row.values) value = float_from_bf16(bf16_bits(static_cast<float>(value)));
  }
  if (!info.is_integer) return row;
  for (std::int64_t g = 0; g < w.num_groups; ++g) {
    const std::int64_t begin = has_group_scales(info) ? g * info.tile_inputs : 0;
    const std::int64_t end =
        has_group_scales(info) ? std::min<std::int64_t>(begin + info.tile_inputs, w.k) : w.k;
    const float group_max = max_abs(x, begin, end);
    const bool is_zero = group_max < 0x1p-100f;
    row.scales.push_back(is_zero ? 0.0 : double{group_max / 127.0f});
    const float inverse = is_zero ? 0.0f : 127.0f / group_max;
    for (std::int64_t i = begin; i < end; ++i) row.values[i] = std::nearbyint(x[i] * inverse);
  }
  return row;
}

// A dot product and a bound of what f32 may lose of it: each of the terms that are added in f32 is
// rounded at most twice as it is made, and each of the additions once.
struct Defined {
  double value, tolerance;
};

Defined define_output(const DefinedRow& x, const Weights& w, std::int64_t output) {
  double sum = 0.0, magnitude = 0.0;
  std::int64_t num_terms = w.k;
  if (x.scales.empty()) {
    for (std::int64_t i = 0; i < w.k; ++i) {
      const double product = x.values[i] * w.value(output, i);
      sum += product;
      magnitude += std::fabs(product);
    }
  } else {
    num_terms = w.num_groups * (w.minimums.empty() ? 1 : 2);
    std::vector<std::int64_t> dots(w.num_groups), sums(w.num_groups);
    for (std::int64_t i = 0; i < w.k; ++i) {
      dots[w.group_of(i)] += static_cast<std::int64_t>(x.values[i]) * w.level(output, i);
      sums[w.group_of(i)] += static_cast<std::int64_t>(x.values[i]);
    }
    for (std::int64_t g = 0; g < w.num_groups; ++g) {
      const std::int64_t first = g * format_info(w.format).tile_inputs;
      const double term = static_cast<double>(dots[g]) * x.scales[g] * w.scale(output, first);
      const double lifted = static_cast<double>(sums[g]) * x.scales[g] * w.minimum(output, first);
      sum += term + lifted;
      magnitude += std::fabs(term) + std::fabs(lifted);
    }
  }
  return {sum, kUnitRoundoff * static_cast<double>(2 * num_terms + 4) * magnitude};
}

struct Call {
  const float* bias = nullptr;
  bool add_to_y = false;
  std::int64_t row_split = 0;    // where phase 1 is cut in two
  std::int64_t panel_split = 0;  // where phase 2 is
};

void linear(const KernelTable& kernels, const PackedMatrix& w, const float* x,
            std::int64_t num_rows, float* y, const Call& call) {
  AlignedBuffer scratch(linear_scratch_bytes(w, num_rows));
  // What earlier steps leave behind must not matter.
  std::memset(scratch.data(), 0xff, scratch.size());
  const std::int64_t k = w.num_inputs();
  linear_prepare(kernels, w, x, k, 0, call.row_split, scratch.data());
  linear_prepare(kernels, w, x, k, call.row_split, num_rows, scratch.data());
  const LinearOutput output{y, w.num_outputs(), call.bias, call.add_to_y};
  linear_compute(kernels, w, scratch.data(), 0, num_rows, call.panel_split, w.num_panels(), output);
  const std::int64_t row_split = num_rows / 3;
  linear_compute(kernels, w, scratch.data(), row_split, num_rows, 0, call.panel_split, output);
  linear_compute(kernels, w, scratch.data(), 0, row_split, 0, call.panel_split, output);
}

std::string describe(const KernelTable& kernels, const Weights& w, Activations activations) {
  return std::string(kernels.isa) + " " + format_info(w.format).name +
         (activations == Activations::kF32 ? " x f32" : "") + " N=" + std::to_string(w.n) +
         " K=" + std::to_string(w.k);
}

void test_against_definition(const KernelTable& kernels, const Weights& w, Activations activations,
                             std::mt19937& random) {
  const std::int64_t num_rows = 7;
  const PackedMatrix matrix = packed(w, activations);
  const std::vector<float> x = random_rows(num_rows, w.k, random);
  const std::vector<float> bias = random_rows(1, w.n, random);
  const std::vector<float> residual = random_rows(num_rows, w.n, random);
  std::vector<float> y = residual;
  linear(kernels, matrix, x.data(), num_rows, y.data(), {bias.data(), true, 3, 1});
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const DefinedRow row = define_row(x.data() + r * w.k, w, activations);
    for (std::int64_t n = 0; n < w.n; ++n) {
      const Defined product = define_output(row, w, n);
      const double added = double{bias[n]} + double{residual[r * w.n + n]};
      const double defined = product.value + added;
      // The two additions after the sum, each rounded once.
      const double tolerance =
          product.tolerance + kUnitRoundoff * 2.01 *
                                  (std::fabs(product.value) + std::fabs(double{bias[n]}) +
                                   std::fabs(double{residual[r * w.n + n]}));
      const double error = std::fabs(double{y[r * w.n + n]} - defined);
      check(error <= tolerance, describe(kernels, w, activations) + " row " + std::to_string(r) +
                                    " output " + std::to_string(n) + ": " +
                                    std::to_string(y[r * w.n + n]) + ", defined " +
                                    std::to_string(defined));
    }
  }
}

// The same bits for every number of rows, wherever in the batch the row stands.
void test_row_invariance(const KernelTable& kernels, const Weights& w, Activations activations,
                         std::mt19937& random) {
  const std::int64_t max_rows = 64;
  const PackedMatrix matrix = packed(w, activations);
  const std::vector<float> x = random_rows(max_rows, w.k, random);
  std::vector<float> alone(max_rows * w.n);
  for (std::int64_t r = 0; r < max_rows; ++r) {
    linear(kernels, matrix, x.data() + r * w.k, 1, alone.data() + r * w.n, {});
  }
  for (std::int64_t num_rows = 2; num_rows <= max_rows; ++num_rows) {
    const std::int64_t first = static_cast<std::int64_t>(random()) % (max_rows - num_rows + 1);
    std::vector<float> together(num_rows * w.n);
    linear(kernels, matrix, x.data() + first * w.k, num_rows, together.data(),
           {nullptr, false, static_cast<std::int64_t>(random()) % num_rows,
            static_cast<std::int64_t>(random()) % (matrix.num_panels() + 1)});
    check(std::memcmp(together.data(), alone.data() + first * w.n,
                      together.size() * sizeof(float)) == 0,
          describe(kernels, w, activations) + ": " + std::to_string(num_rows) +
              " rows together differ from each alone");
  }
}

// More rows and inputs than a kernel keeps in a cache at a time, neither a multiple of a tile: the
// same bits as each row alone, and each output counted once where it is added to.
void test_many_rows(const KernelTable& kernels, Format format, std::mt19937& random) {
  const std::int64_t num_rows = 293;
  const Weights w = random_weights(format, 70, 1090, random);
  const PackedMatrix matrix = packed(w);
  const std::vector<float> x = random_rows(num_rows, w.k, random);
  const std::vector<float> bias = random_rows(1, w.n, random);
  const std::vector<float> residual = random_rows(num_rows, w.n, random);
  std::vector<float> alone = residual, together = residual;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    linear(kernels, matrix, x.data() + r * w.k, 1, alone.data() + r * w.n, {bias.data(), true});
  }
  linear(kernels, matrix, x.data(), num_rows, together.data(), {bias.data(), true, 100, 1});
  check(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)) == 0,
        describe(kernels, w, Activations::kNative) + ": many rows differ from each alone");
}

// The same bits of one row for every number of panels that are computed side by side.
void test_panels_side_by_side(const KernelTable& kernels, const Weights& w, Activations activations,
                              std::mt19937& random) {
  const PackedMatrix matrix = packed(w, activations);
  const std::vector<float> x = random_rows(1, w.k, random);
  AlignedBuffer scratch(linear_scratch_bytes(matrix, 1));
  linear_prepare(kernels, matrix, x.data(), w.k, 0, 1, scratch.data());
  std::vector<float> apart(w.n);
  for (std::int64_t panel = 0; panel < matrix.num_panels(); ++panel) {
    linear_compute(kernels, matrix, scratch.data(), 0, 1, panel, panel + 1, {apart.data(), w.n});
  }
  for (std::int64_t split = 0; split <= matrix.num_panels(); ++split) {
    std::vector<float> together(w.n);
    linear(kernels, matrix, x.data(), 1, together.data(), {nullptr, false, 0, split});
    check(together == apart, describe(kernels, w, activations) + ": " + std::to_string(split) +
                                 " panels side by side differ from each apart");
  }
}

void test_extreme_rows(const KernelTable& kernels, const Weights& w) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float kinds[] = {0.0f, 1e-38f, 1e30f, infinity, std::nanf("")};
  const std::int64_t num_rows = 5;
  const PackedMatrix matrix = packed(w);
  std::vector<float> x(num_rows * w.k, 0.0f), y(num_rows * w.n);
  for (std::int64_t r = 0; r < num_rows; ++r) x[r * w.k + w.k / 2] = kinds[r];
  linear(kernels, matrix, x.data(), num_rows, y.data(), {});
  for (std::int64_t i = 0; i < num_rows * w.n; ++i) {
    const std::int64_t row = i / w.n;
    const std::string what = describe(kernels, w, Activations::kNative) + ": row " +
                             std::to_string(row) + " of extremes gave " + std::to_string(y[i]);
    if (row == 0) check(y[i] == 0.0f, what);
    if (row == 1) check(std::fabs(y[i]) < 1e-34f, what);
    if (row == 2) check(std::isfinite(y[i]), what);
    // An infinity is a NaN at the latest where it meets a weight of zero.
    if (row == 3) check(!std::isfinite(y[i]), what);
    if (row == 4) check(std::isnan(y[i]), what);
  }
}

// Output n sees group n of x alone, each of which is half as large as the one before: all other
// scales are zero.
void test_small_groups(const KernelTable& kernels, Format format, std::mt19937& random) {
  const std::int64_t num_groups = 40, k = num_groups * format_info(format).tile_inputs;
  Weights w = random_weights(format, num_groups, k, random);
  for (auto* bytes : {&w.scales, &w.minimums}) {
    auto* const numbers = reinterpret_cast<std::uint16_t*>(bytes->data());
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(bytes->size()) / 2; ++i) {
      numbers[i] = i / num_groups == i % num_groups ? 0x1c00 : 0;
    }
  }
  std::vector<float> x = random_rows(1, k, random), y(num_groups);
  for (std::int64_t i = 0; i < k; ++i) x[i] = std::ldexp(x[i], -static_cast<int>(w.group_of(i)));
  linear(kernels, packed(w), x.data(), 1, y.data(), {});
  const DefinedRow row = define_row(x.data(), w, Activations::kNative);
  for (std::int64_t n = 0; n < num_groups; ++n) {
    const Defined defined = define_output(row, w, n);
    check(std::fabs(double{y[n]} - defined.value) <= defined.tolerance,
          describe(kernels, w, Activations::kNative) + " small group " + std::to_string(n) + ": " +
              std::to_string(y[n]) + ", defined " + std::to_string(defined.value));
  }
}

// Inputs whose weights have scales of zero do not change a bit: on no level may such a scale count
// for something, however little.
void test_zero_scales(const KernelTable& kernels, Format format, std::mt19937& random) {
  const std::int64_t num_outputs = 64, num_rows = 3;
  const std::int64_t k = 4 * format_info(format).tile_inputs;
  Weights w = random_weights(format, num_outputs, k, random);
  for (auto* bytes : {&w.scales, &w.minimums}) {
    auto* const numbers = reinterpret_cast<std::uint16_t*>(bytes->data());
    for (std::size_t i = 0; i < bytes->size() / 2; i += w.num_groups) numbers[i] = 0;  // group 0
  }
  std::vector<float> x = random_rows(num_rows, k, random), without = x;
  for (std::int64_t i = 0; i < num_rows * k; ++i) {
    if (w.group_of(i % k) == 0) without[i] = 0;
    if (i % k == k - 1) x[i] = without[i] = 100.0f;  // the row's largest, of another group
  }
  const PackedMatrix matrix = packed(w);
  for (const std::int64_t rows : {std::int64_t{1}, num_rows}) {
    std::vector<float> y(rows * num_outputs), expected(rows * num_outputs);
    linear(kernels, matrix, x.data(), rows, y.data(), {});
    linear(kernels, matrix, without.data(), rows, expected.data(), {});
    check(y == expected, describe(kernels, w, Activations::kNative) + ": scales of zero count");
  }
}

void test_packing(const Weights& w) {
  const PackedMatrix matrix = packed(w);
  Weights back = w;
  for (auto* bytes : {&back.bytes, &back.scales, &back.zero_points, &back.minimums}) {
    std::fill(bytes->begin(), bytes->end(), 0);
  }
  for (auto* factors : {&back.scale_factors, &back.minimum_factors}) {
    std::fill(factors->begin(), factors->end(), 0);
  }
  matrix.unpack(back.target(), 0, matrix.num_panels());
  const std::string what = std::string(format_info(w.format).name) + " N=" + std::to_string(w.n) +
                           " K=" + std::to_string(w.k);
  check(back.bytes == w.bytes && back.scales == w.scales && back.zero_points == w.zero_points &&
            back.minimums == w.minimums && back.scale_factors == w.scale_factors &&
            back.minimum_factors == w.minimum_factors,
        what + ": unpacked differs from packed");

  std::vector<float> row(w.k);
  for (std::int64_t n = 0; n < w.n; ++n) {
    matrix.gather_row(n, row.data());
    for (std::int64_t i = 0; i < w.k; ++i) {
      check(row[i] == w.rounded_value(n, i), what + ": gathered row");
    }
  }
}

// Sums over a whole row must fit where they are kept: all products as large as they get.
void test_longest_channel(const KernelTable& kernels) {
  const std::int64_t k = 65536;
  const std::vector<std::int8_t> codes(k, -128);
  const float scale = 1.0f;
  PackedMatrix matrix(Format::kInt8Channel, 1, k);
  matrix.pack({codes.data(), &scale}, 0, 1);
  const std::vector<float> x(k, 127.0f);
  float y = 0.0f;
  linear(kernels, matrix, x.data(), 1, &y, {});
  check(y == -128.0f * 127.0f * 65536.0f, "the longest row of int8-channel: " + std::to_string(y));

  bool is_refused = false;
  try {
    PackedMatrix(Format::kInt8Channel, 1, k + 1);
  } catch (const std::invalid_argument&) {
    is_refused = true;
  }
  check(is_refused, "int8-channel takes more inputs than it can sum");
}

void test_format(Format format, const std::vector<const KernelTable*>& tables) {
  std::mt19937 random(static_cast<unsigned>(format) + 1);
  const std::int64_t shapes[][2] = {{1, 32}, {31, 96}, {33, 128}, {70, 416},
                                    {5, 45}, {64, 1},  {3, 530}};
  for (const auto& [n, k] : shapes) {
    const Weights w = random_weights(format, n, k, random);
    test_packing(w);
    for (const KernelTable* kernels : tables) {
      for (const Activations activations : {Activations::kNative, Activations::kF32}) {
        test_against_definition(*kernels, w, activations, random);
      }
    }
  }
  for (const KernelTable* kernels : tables) {
    test_row_invariance(*kernels, random_weights(format, 70, 288, random), Activations::kNative,
                        random);
    test_row_invariance(*kernels, random_weights(format, 33, 160, random), Activations::kF32,
                        random);
    for (const Activations activations : {Activations::kNative, Activations::kF32}) {
      test_panels_side_by_side(*kernels, random_weights(format, 200, 160, random), activations,
                               random);
    }
    test_extreme_rows(*kernels, random_weights(format, 40, 70, random));
  }
}

}  // namespace

int main() {
  const std::vector<const KernelTable*> tables = supported_kernel_tables();
  std::mt19937 random(1);
  for (int format = 0; format < kNumFormats; ++format) {
    test_format(static_cast<Format>(format), tables);
  }
  for (const KernelTable* kernels : tables) {
    test_longest_channel(*kernels);
    for (const Format format : {Format::kInt8, Format::kInt4, Format::kInt8Min, Format::kInt4Min}) {
      test_small_groups(*kernels, format, random);
      test_zero_scales(*kernels, format, random);
    }
    for (const Format format : {Format::kBF16, Format::kInt8Channel, Format::kInt4G128}) {
      test_many_rows(*kernels, format, random);
    }
    std::printf("%s ", kernels->isa);
  }
  std::printf("ok\n");
}
