// Python's merges_of_scores.
#include "scored_merges.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/bindings.h"
#include "require.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace pellucid {
namespace {

using Scores = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pairs = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>, nb::c_contig>;

Pairs merges_of_texts(const nb::list& texts, const Scores& scores, const Flags& made) {
  const std::size_t count = texts.size();
  require(scores.size() == count && made.size() == count, "scores, made: one for each token");
  std::vector<ScoredToken> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    Py_ssize_t size = 0;
    // The object keeps these bytes.
    const char* const data = PyUnicode_AsUTF8AndSize(nb::handle(texts[i]).ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    tokens.push_back({{data, static_cast<std::size_t>(size)}, scores.data()[i], made.data()[i]});
  }
  auto merges = std::make_unique<std::vector<TokenMerge>>();
  {
    const nb::gil_scoped_release without_gil;
    *merges = merges_of_scores(tokens);
  }
  static_assert(sizeof(TokenMerge) == 2 * sizeof(std::int32_t));
  const nb::capsule owner(merges.get(), [](void* data) noexcept {
    delete static_cast<std::vector<TokenMerge>*>(data);
  });
  std::vector<TokenMerge>* const kept = merges.release();
  return {kept->data(), {kept->size(), 2}, owner};
}

}  // namespace

void bind_scored_merges(nb::module_& m) {
  m.def("merges_of_scores", &merges_of_texts, "tokens"_a, "scores"_a, "made"_a,
        "The merges [M, 2] of different tokens, of which those `made` by merges have at most 256 "
        "characters, as places in `tokens` (csrc/scored_merges.h).");
}

}  // namespace pellucid
