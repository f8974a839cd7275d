// Python's Draw: the parameters by which one token is drawn.
#include "bindings/token_draw.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include "bindings/arrays.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

template <class Array>
std::int64_t size_of(const std::optional<Array>& array) {
  return array ? static_cast<std::int64_t>(array->size()) : 0;
}

template <class Array>
auto data_of(const std::optional<Array>& array) {
  return array ? array->data() : nullptr;
}

void check_token_ids(const char* name, const std::int32_t* token_ids, std::int64_t size,
                     std::int64_t vocab_size) {
  for (std::int64_t i = 0; i < size; ++i) {
    require(token_ids[i] >= 0 && token_ids[i] < vocab_size, name, ": ", token_ids[i],
            " is not in the vocabulary of ", vocab_size);
  }
}

}  // namespace

TokenDraw::TokenDraw(const Draw& draw, DrawArrays arrays)
    : draw_(draw), arrays_(std::move(arrays)) {
  draw_.allowed = data_of(arrays_.allowed);
  draw_.forbidden = data_of(arrays_.forbidden);
  draw_.num_forbidden = size_of(arrays_.forbidden);
  draw_.bias_ids = data_of(arrays_.bias_ids);
  draw_.biases = data_of(arrays_.biases);
  draw_.num_biases = size_of(arrays_.bias_ids);
  draw_.text = data_of(arrays_.text);
  draw_.num_text_tokens = size_of(arrays_.text);
  require(size_of(arrays_.biases) == draw_.num_biases, "biases: must be as many as bias_ids");
  require(draw_.num_prompt_tokens >= 0, "num_prompt_tokens: must not be negative");
  require(draw_.top_k >= 0 && draw_.sharpness >= 0, "top_k, sharpness: must not be negative");
  require(draw_.top_p > 0 && draw_.typical_p > 0, "top_p, typical_p: must be above 0");
}

void TokenDraw::check(std::int64_t vocab_size) const {
  constexpr std::int64_t kBitsPerWord = 32;
  require(!arrays_.allowed || size_of(arrays_.allowed) * kBitsPerWord >= vocab_size,
          "allowed: has fewer bits than the vocabulary has tokens, ", vocab_size);
  check_token_ids("forbidden", draw_.forbidden, draw_.num_forbidden, vocab_size);
  check_token_ids("bias_ids", draw_.bias_ids, draw_.num_biases, vocab_size);
  check_token_ids("text", draw_.text, draw_.num_text_tokens, vocab_size);
}

void bind_token_draw(nb::module_& m) {
  nb::class_<TokenDraw>(m, "Draw", "What one token is drawn by. Borrows its arrays.")
      .def(
          "__init__",
          [](TokenDraw* self, std::uint64_t seed, std::uint32_t stream, std::uint32_t position,
             float sharpness, std::int64_t top_k, double top_p, float min_p, double typical_p,
             const std::optional<TokenMask>& allowed, const std::optional<TokenIds>& forbidden,
             const std::optional<TokenIds>& bias_ids, const std::optional<Biases>& biases,
             const std::optional<TokenIds>& text, std::int64_t num_prompt_tokens,
             double repetition_penalty, double presence_penalty, double frequency_penalty) {
            Draw draw;
            draw.key = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                        stream, position};
            draw.sharpness = sharpness;
            draw.top_k = top_k;
            draw.top_p = top_p;
            draw.min_p = min_p;
            draw.typical_p = typical_p;
            draw.num_prompt_tokens = num_prompt_tokens;
            draw.repetition_penalty = repetition_penalty;
            draw.presence_penalty = presence_penalty;
            draw.frequency_penalty = frequency_penalty;
            new (self) TokenDraw(draw, {allowed, forbidden, bias_ids, biases, text});
          },
          "seed"_a, "stream"_a, "position"_a, "sharpness"_a, "top_k"_a = 0, "top_p"_a = 1.0,
          "min_p"_a = 0.0f, "typical_p"_a = 1.0, "allowed"_a = nb::none(),
          "forbidden"_a = nb::none(), "bias_ids"_a = nb::none(), "biases"_a = nb::none(),
          "text"_a = nb::none(), "num_prompt_tokens"_a = 0, "repetition_penalty"_a = 1.0,
          "presence_penalty"_a = 0.0, "frequency_penalty"_a = 0.0,
          "`sharpness` is log2(e) / temperature, or 0: greedily. `allowed` has a bit for each "
          "token, "
          "the lowest of a word first. `text` is prompt and output, for penalties.");
}

}  // namespace pellucid
